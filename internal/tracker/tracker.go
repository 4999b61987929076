package tracker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tallygate/tallygate/internal/usage"
)

// Options of New; the zero value of each field stands for its default.
type Options struct {
	// FlushEvery is how long changes are gathered before they are applied,
	// overriding the default 100 ms. Longer means fewer commands on Redis and
	// later figures. It is stretched, up to 2 s, while flushes take long.
	FlushEvery time.Duration
	// ApplyCells bounds the cells of one Ledger.Apply call, overriding the
	// default 2048.
	ApplyCells int
	// PublishRecords bounds the records of one Publish call, overriding the
	// default 4096.
	PublishRecords int
	// PublishTimeout ends a Publish call that hangs, overriding the default 30 s;
	// what it carried stays in the backlog.
	PublishTimeout time.Duration
	// DrainTimeout bounds the last flush after Run's context ended, overriding
	// the default 10 s. What is not done by then is found again by the scan with
	// which the next tracker starts, as long as its counters are in grace.
	DrainTimeout time.Duration
	// RescanEvery is the pause between two scans of the counters in grace while
	// all is well, overriding the default 5 minutes; negative means never. It must
	// be well below grace: what notifications lost without anybody noticing is
	// found then, or not at all.
	RescanEvery time.Duration
	// Share divides the tokens among several trackers, overriding that each works
	// on all of them, which is exact as well and costs Redis the work of each.
	Share Share
	// Log gets what an operator should know, overriding slog.Default.
	Log *slog.Logger
	// Registerer gets the tracker's collectors; nil registers them nowhere.
	Registerer prometheus.Registerer
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.FlushEvery, 100*time.Millisecond)
	def(&o.PublishTimeout, 30*time.Second)
	def(&o.DrainTimeout, 10*time.Second)
	if o.RescanEvery == 0 {
		o.RescanEvery = 5 * time.Minute
	}
	if o.ApplyCells <= 0 {
		o.ApplyCells = 2048
	}
	if o.PublishRecords <= 0 {
		o.PublishRecords = 4096
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Tracker follows a feed. Make one with New, run it once with Run.
type Tracker struct {
	feed      Feed
	ledger    Ledger
	publisher usage.Publisher
	opts      Options
	metrics   *metrics

	rescan  chan struct{} // capacity 1: a scan is wanted
	publish chan struct{} // capacity 1: the backlog is not empty

	mu      sync.Mutex // guards what follows
	dirty   map[usage.Key]origin
	backlog map[usage.Key]usage.Totals
	events  []usage.Event // of the tracker's own, on their way to the bus
	age     ages
	phase   phase
}

// phase is how far a tracker has come since its start.
type phase uint8

const (
	starting   phase = iota // the feed does not deliver yet
	delivering              // it does; the first scan is under way
	caughtUp                // what the first scan found is being applied
	ready
)

// Ready returns nil once the feed delivers and what the first scan found is
// applied; otherwise an error that says what is missing.
func (t *Tracker) Ready(context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch t.phase {
	case starting:
		return errors.New("the tracker does not get notifications yet")
	case delivering:
		return errors.New("the tracker's first scan is not done yet")
	case caughtUp:
		return errors.New("the tracker has not applied yet what its first scan found")
	}
	return nil
}

// advance moves on from one phase to the next.
func (t *Tracker) advance(from phase) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.phase == from {
		t.phase++
	}
}

// ages says since when the oldest change waits at each stage of its way; zero
// where none does.
type ages struct{ dirty, applying, backlog, publishing time.Time }

func (a *ages) oldest() time.Time {
	return earlier(earlier(a.dirty, a.applying), earlier(a.backlog, a.publishing))
}

// earlier returns the earlier of two times, of which zero ones do not count.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// origin says how a cell became dirty.
type origin uint8

const (
	checked  origin = iota // found by a scan while all is well: nothing is expected of it
	scanned                // found by a scan because something may have been missed
	notified               // heard of from the feed
)

// New returns a tracker that follows feed, accounts in ledger, and puts the
// records on the publisher's bus.
func New(feed Feed, ledger Ledger, publisher usage.Publisher, opts Options) *Tracker {
	t := &Tracker{
		feed: feed, ledger: ledger, publisher: publisher, opts: opts.withDefaults(),
		rescan: make(chan struct{}, 1), publish: make(chan struct{}, 1),
		dirty: map[usage.Key]origin{}, backlog: map[usage.Key]usage.Totals{},
	}
	t.metrics = newMetrics(t.opts.Registerer, t)
	return t
}

// Run works until ctx ends, or until the feed fails for good. Then it hears the
// feed out, applies what is dirty and publishes the backlog, within DrainTimeout,
// and returns the feed's error or what could not be drained.
func (t *Tracker) Run(ctx context.Context) error {
	// The loops outlive ctx until the feed has been heard out: what it says last
	// must still be applied.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	loops, work := errgroup.WithContext(work)
	loops.Go(func() error { t.applyLoop(work); return nil })
	loops.Go(func() error { t.publishLoop(work); return nil })
	loops.Go(func() error { t.scanLoop(work); return nil })
	if t.opts.Share != nil {
		loops.Go(func() error { t.shareLoop(work); return nil })
	}

	err := t.feed.Watch(ctx, t.changed, t.resync)
	stop()
	_ = loops.Wait()

	// ctx has ended; the last flush needs a live one, bounded.
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.opts.DrainTimeout)
	defer cancel()
	if t.opts.Share != nil {
		// Last, so that the others look for what was not drained.
		defer func() { _ = t.opts.Share.Leave(drain) }()
	}
	if derr := t.drain(drain); derr != nil {
		t.opts.Log.Error("tracker could not drain; a tracker that starts within grace finds it again", "error", derr)
		if err == nil {
			err = derr
		}
	}
	return err
}

// changed is told of a changed counter.
func (t *Tracker) changed(cell usage.Key) {
	t.metrics.notifications.Inc()
	t.mark([]usage.Key{cell}, notified)
}

// resync is told that changes may have been missed.
func (t *Tracker) resync() {
	t.advance(starting)
	signal(t.rescan)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is waiting already
	}
}

func (t *Tracker) mark(cells []usage.Key, how origin) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, cell := range cells {
		if t.opts.Share != nil && !t.opts.Share.Owns(cell.Token) {
			continue
		}
		if old, ok := t.dirty[cell]; !ok || old < how {
			t.dirty[cell] = how
		}
	}
	if t.age.dirty.IsZero() && len(t.dirty) > 0 {
		t.age.dirty = time.Now()
	}
}

// applyLoop flushes every FlushEvery, or less often when a flush takes long, so
// that accounting never takes more than a fifth of the store's time from decisions.
func (t *Tracker) applyLoop(ctx context.Context) {
	const idleShare, maxPause = 4, 2 * time.Second
	timer := time.NewTimer(t.opts.FlushEvery)
	defer timer.Stop()
	watermark, _ := t.ledger.(Watermark)
	failing, marked := false, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		done, err := t.applyOnce(ctx)
		took := time.Since(began)
		if done.cells > 0 {
			t.metrics.flush.Observe(took.Seconds())
		}
		timer.Reset(max(t.opts.FlushEvery, min(idleShare*took, maxPause)))
		if err == nil && watermark != nil && time.Since(marked) >= markEvery && t.Ready(ctx) == nil {
			if err = t.markOnce(ctx, watermark); err == nil {
				marked = time.Now()
			}
		}
		failing = t.logTurn(ctx, failing, err, "apply counters")
	}
}

// shareLoop says that this tracker lives, from when the feed delivers: it must not
// own what it cannot hear of. When shares change, everybody scans for what has
// become theirs.
func (t *Tracker) shareLoop(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for failing := false; ; {
		t.mu.Lock()
		hears := t.phase > starting
		t.mu.Unlock()
		if hears {
			changed, err := t.opts.Share.Beat(ctx)
			failing = t.logTurn(ctx, failing, err, "tell the other trackers that it lives")
			if changed {
				t.resync()
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// logTurn logs when a loop begins to fail and when it works again, not every time.
func (t *Tracker) logTurn(ctx context.Context, failing bool, err error, what string) bool {
	switch {
	case ctx.Err() != nil:
		return failing
	case err != nil && !failing:
		t.opts.Log.Warn("tracker cannot "+what+"; it keeps trying", "error", err)
	case err == nil && failing:
		t.opts.Log.Info("tracker can " + what + " again")
	}
	return err != nil
}

// flushed is what one applyOnce did.
type flushed struct {
	cells     int
	moved     int64 // units newly accounted for
	recovered int64 // those of them that only a scan found
}

// applyOnce applies all cells that are dirty now. Cells of a batch that failed
// are dirty again afterwards.
func (t *Tracker) applyOnce(ctx context.Context) (flushed, error) {
	t.mu.Lock()
	dirty, phase := t.dirty, t.phase
	t.dirty = make(map[usage.Key]origin, len(dirty)/2)
	t.age.applying, t.age.dirty = t.age.dirty, time.Time{}
	t.mu.Unlock()

	var done flushed
	batch := make([]usage.Key, 0, min(len(dirty), t.opts.ApplyCells))
	var failed error
	// apply returns an error only when it makes no sense to go on.
	apply := func() error {
		applied, err := t.ledger.Apply(ctx, batch)
		for _, a := range applied {
			done.moved += a.Moved
			if dirty[a.Key] < notified {
				done.recovered += a.Moved
			}
		}
		t.queue(applied, dirty)
		if err != nil {
			failed = fmt.Errorf("apply %d cells: %w", len(batch), err)
			for _, a := range applied {
				delete(dirty, a.Key)
			}
			if len(applied) == 0 {
				return failed
			}
		} else {
			for _, cell := range batch {
				delete(dirty, cell)
			}
		}
		done.cells += len(batch)
		batch = batch[:0]
		return nil
	}
	for cell := range dirty {
		if batch = append(batch, cell); len(batch) == t.opts.ApplyCells {
			if apply() != nil {
				break
			}
		}
	}
	if len(batch) > 0 && len(batch) < t.opts.ApplyCells {
		_ = apply() // kept in failed
	}
	err := failed
	t.mu.Lock()
	if err != nil {
		t.age.dirty = earlier(t.age.dirty, t.age.applying)
		for cell, how := range dirty {
			t.dirty[cell] = max(t.dirty[cell], how)
		}
	}
	t.age.applying = time.Time{}
	t.mu.Unlock()
	t.metrics.units.Add(float64(done.moved))
	t.metrics.recovered.Add(float64(done.recovered))
	if phase == caughtUp && err == nil {
		t.advance(caughtUp)
	}
	return done, err
}

// queue puts records into the backlog: all of them, whether they say anything new
// or not, as it may be the record before that was lost, except those which were
// only looked at for safety.
func (t *Tracker) queue(applied []usage.Applied, dirty map[usage.Key]origin) {
	if len(applied) == 0 {
		return
	}
	t.mu.Lock()
	for _, a := range applied {
		if a.Moved > 0 || dirty[a.Key] != checked {
			t.backlog[a.Key] = t.backlog[a.Key].Max(a.Totals)
		}
	}
	t.age.backlog = earlier(t.age.backlog, t.age.applying)
	t.mu.Unlock()
	signal(t.publish)
}

// publishLoop empties the backlog whenever there is one. It waits between tries
// that fail, longer each time, up to maxBackoff.
func (t *Tracker) publishLoop(ctx context.Context) {
	const minBackoff, maxBackoff = 100 * time.Millisecond, 5 * time.Second
	backoff, failing := minBackoff, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.publish:
		}
		_, err := t.publishOnce(ctx)
		failing = t.logTurn(ctx, failing, err, "publish records")
		if err == nil {
			backoff = minBackoff
			continue
		}
		signal(t.publish)
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff):
			backoff = min(2*backoff, maxBackoff)
		}
	}
}

// publishOnce publishes the backlog and the events as they are now, batch by
// batch, and returns how many records the bus took. What a batch that failed
// carried is there again afterwards, records merged with what came meanwhile.
func (t *Tracker) publishOnce(ctx context.Context) (int, error) {
	t.mu.Lock()
	backlog, events := t.backlog, t.events
	t.backlog, t.events = make(map[usage.Key]usage.Totals, len(backlog)/2), nil
	t.age.publishing, t.age.backlog = t.age.backlog, time.Time{}
	t.mu.Unlock()

	published := 0
	var err error
	// A bus in process may keep what it was given: each batch has its own slice.
	var batch []usage.Record
	send := func() error {
		ctx, cancel := context.WithTimeout(ctx, t.opts.PublishTimeout)
		defer cancel()
		if err := t.publisher.Publish(ctx, usage.Batch{Records: batch, Events: events}); err != nil {
			return fmt.Errorf("publish %d records: %w", len(batch), err)
		}
		for _, r := range batch {
			delete(backlog, r.Key)
		}
		published += len(batch)
		batch, events = nil, nil
		return nil
	}
	for key, totals := range backlog {
		if batch = append(batch, usage.Record{Key: key, Totals: totals}); len(batch) == t.opts.PublishRecords {
			if err = send(); err != nil {
				break
			}
		}
	}
	if err == nil && len(batch)+len(events) > 0 {
		err = send()
	}
	t.mu.Lock()
	if err != nil {
		t.age.backlog = earlier(t.age.backlog, t.age.publishing)
		for key, totals := range backlog {
			t.backlog[key] = t.backlog[key].Max(totals)
		}
		t.events = append(events, t.events...)
	}
	t.age.publishing = time.Time{}
	t.mu.Unlock()
	t.metrics.published.Add(float64(published))
	if err != nil {
		t.metrics.publishErrors.Inc()
	}
	return published, err
}

// scanLoop scans whenever that was asked for, again when it failed, and at a slow
// steady pace.
func (t *Tracker) scanLoop(ctx context.Context) {
	const backoff = time.Second
	var steady <-chan time.Time
	if t.opts.RescanEvery > 0 {
		tick := time.NewTicker(t.opts.RescanEvery)
		defer tick.Stop()
		steady = tick.C
	}
	failing := false
	for {
		how := scanned
		select {
		case <-ctx.Done():
			return
		case <-t.rescan:
		case <-steady:
			how = checked
		}
		err := t.scanOnce(ctx, how)
		failing = t.logTurn(ctx, failing, err, "scan counters")
		if err == nil {
			continue
		}
		if how == scanned {
			t.resync()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff):
		}
	}
}

// scanOnce marks every cell that has a counter in grace: those that the account
// holds already too, since the record that says so may have been lost.
func (t *Tracker) scanOnce(ctx context.Context, how origin) error {
	t.metrics.rescans.Inc()
	err := t.ledger.Scan(ctx, func(cells []usage.Key) { t.mark(cells, how) })
	if err == nil {
		t.advance(delivering)
	}
	return err
}

// drain makes the scan that is still wanted, applies and publishes everything,
// trying again until ctx ends.
func (t *Tracker) drain(ctx context.Context) error {
	for {
		var err error
		select {
		case <-t.rescan:
			if err = t.scanOnce(ctx, scanned); err != nil {
				t.resync()
			}
		default:
		}
		if err == nil {
			_, err = t.applyOnce(ctx)
		}
		if err == nil {
			_, err = t.publishOnce(ctx)
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			t.mu.Lock()
			defer t.mu.Unlock()
			return fmt.Errorf("drain: %d dirty cells and %d records are left: %w", len(t.dirty), len(t.backlog), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
