package counters

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// refusals remembers which requests have been refused until when, and refuses
// them again without asking Redis. What fits later only because somebody else
// gave units back is announced by whoever does (see Freed), and forgotten here.
// It answers only while it hears those announcements.
type refusals struct {
	store     *Store
	hearing   atomic.Bool
	seed      maphash.Seed
	shards    [refusalShards]refusalShard
	flushing  sync.Mutex // held while a flush runs
	scheduled atomic.Bool
}

const (
	refusalShards = 64
	// refusalsPerShard bounds what is remembered, 65,536 requests in all.
	refusalsPerShard = 1024
	// flushEvery is how long counted refusals may wait to reach Redis.
	flushEvery = 100 * time.Millisecond
)

type refusalShard struct {
	mu      sync.Mutex
	known   map[refusalKey]refusal
	pending map[cellKey]int64 // rejected units that Redis does not know of
	heard   atomic.Uint64     // announcements about tokens of this shard
}

// refusalKey tells requests apart as a batch does, see quota.Batch.
type refusalKey struct {
	token    token.ID
	resource string
	cost     int64
	limits   *quota.Limit
	n        int
}

type refusal struct {
	decision quota.Decision
	until    int64 // unix ms
}

type cellKey struct {
	token    token.ID
	resource string
	minute   int64 // epoch minute
}

func newRefusals(store *Store) *refusals {
	r := &refusals{store: store, seed: maphash.MakeSeed()}
	for i := range r.shards {
		r.shards[i].known = make(map[refusalKey]refusal)
		r.shards[i].pending = make(map[cellKey]int64)
	}
	return r
}

func (r *refusals) shard(id token.ID) *refusalShard {
	return &r.shards[maphash.String(r.seed, string(id))%refusalShards]
}

// keyOf returns the request's key, and whether refusals of it may be remembered:
// not where a refusal has effects, and not where others free units at any time.
func keyOf(q *quota.Request) (refusalKey, bool) {
	if q.Cost == 0 || q.Blocked || q.Overdraft || len(q.Limits) == 0 {
		return refusalKey{}, false
	}
	for i := range q.Limits {
		if l := &q.Limits[i]; l.CountRejected || l.Shadow || l.Algorithm == quota.Concurrency {
			return refusalKey{}, false
		}
	}
	return refusalKey{q.Token, q.Resource, q.Cost, &q.Limits[0], len(q.Limits)}, true
}

// refuse answers a request that is known to be refused still.
func (r *refusals) refuse(ctx context.Context, q *quota.Request) (quota.Result, bool) {
	if !r.hearing.Load() {
		return quota.Result{}, false
	}
	key, ok := keyOf(q)
	if !ok {
		return quota.Result{}, false
	}
	now, err := r.store.clock.Now(ctx)
	if err != nil {
		return quota.Result{}, false
	}
	s := r.shard(q.Token)
	s.mu.Lock()
	known, ok := s.known[key]
	if ok && now >= known.until {
		delete(s.known, key)
		ok = false
	}
	if ok {
		s.pending[cellKey{q.Token, q.Resource, quota.Minute(now)}] += q.Cost
	}
	s.mu.Unlock()
	if !ok {
		return quota.Result{}, false
	}
	r.schedule()
	return quota.Result{Decision: later(known.decision, now)}, true
}

// later is a refusal as it is at a later time.
func later(d quota.Decision, now int64) quota.Decision {
	passed := time.Duration(now-d.At) * time.Millisecond
	limits := make([]quota.Status, len(d.Limits))
	for i, l := range d.Limits {
		l.Reset = max(0, l.Reset-passed)
		if l.RetryAfter != quota.Never {
			l.RetryAfter = max(0, l.RetryAfter-passed)
		}
		limits[i] = l
	}
	d.At, d.Limits = now, limits
	if d.RetryAfter != quota.Never {
		d.RetryAfter -= passed
	}
	return d
}

// heard is how many announcements about a token's shard have come: a refusal that
// was decided before the latest must not be remembered.
func (r *refusals) heard(id token.ID) uint64 { return r.shard(id).heard.Load() }

// remember remembers a refusal, if nothing was announced since heard was read.
func (r *refusals) remember(q *quota.Request, d *quota.Decision, heard uint64) {
	if d.Allowed || !r.hearing.Load() || d.RetryAfter <= 0 || d.RetryAfter == quota.Never {
		return
	}
	key, ok := keyOf(q)
	if !ok {
		return
	}
	s := r.shard(q.Token)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heard.Load() != heard {
		return
	}
	for old, known := range s.known { // make room: for the ended first, else for any
		if len(s.known) < refusalsPerShard && d.At < known.until {
			break
		}
		delete(s.known, old)
	}
	s.known[key] = refusal{*d, d.At + d.RetryAfter.Milliseconds()}
}

// forget forgets what is known of a token.
func (r *refusals) forget(id token.ID) {
	s := r.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard.Add(1)
	for key := range s.known {
		if key.token == id {
			delete(s.known, key)
		}
	}
}

func (r *refusals) forgetAll() {
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		s.heard.Add(1)
		clear(s.known)
		s.mu.Unlock()
	}
}

// schedule has the pending refusals flushed soon.
func (r *refusals) schedule() {
	if r.scheduled.Load() || !r.scheduled.CompareAndSwap(false, true) {
		return
	}
	time.AfterFunc(flushEvery, func() {
		r.scheduled.Store(false)
		// Nobody waits for it; what fails is pending again and goes next time.
		if r.flush(context.Background()) != nil {
			r.schedule()
		}
	})
}

// flush counts the pending refusals in Redis. After an answer was lost some may be
// counted already: those are dropped rather than counted twice.
func (r *refusals) flush(ctx context.Context) error {
	r.flushing.Lock()
	defer r.flushing.Unlock()
	taken := make(map[cellKey]int64)
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		for key, units := range s.pending {
			taken[key] = units
		}
		clear(s.pending)
		s.mu.Unlock()
	}
	if len(taken) == 0 {
		return nil
	}
	err := r.store.countRejected(ctx, taken)
	for key, units := range taken { // what is left of it was not counted
		s := r.shard(key.token)
		s.mu.Lock()
		s.pending[key] += units
		s.mu.Unlock()
	}
	return err
}

// onceInt is a command that go-redis must not send twice.
type onceInt struct{ *redis.IntCmd }

func (onceInt) NoRetry() bool { return true }

// countRejected counts rejected units of cells and removes from cells what was
// counted, or may have been.
func (s *Store) countRejected(ctx context.Context, cells map[cellKey]int64) error {
	type sent struct {
		key cellKey
		cmd onceInt
	}
	var all []sent
	pipe := s.client.Pipeline()
	for key, units := range cells {
		name := s.ns.Rejected(key.token, key.resource, key.minute)
		cmd := onceInt{redis.NewIntCmd(ctx, "incrby", name, units)}
		_ = pipe.Process(ctx, cmd)
		pipe.PExpireAt(ctx, name, time.UnixMilli((key.minute+1)*60_000+s.grace))
		all = append(all, sent{key, cmd})
	}
	_, err := pipe.Exec(ctx)
	var failed error
	for _, c := range all {
		if err := c.cmd.Err(); err == nil || MayHaveCounted(err) {
			delete(cells, c.key)
		} else {
			failed = err
		}
	}
	return errors.Join(failed, err)
}

// Freed is the channel on which it is announced that a token got units back other
// than by the passing of time: a refund, a grant, a reset. The message is its ID.
func (ns Namespace) Freed() string { return "freed:" + string(ns) }

// follow hears the announcements until ctx ends. Whenever some may have been
// missed, everything is forgotten.
func (r *refusals) follow(ctx context.Context) error {
	defer r.forgetAll()
	defer r.hearing.Store(false)
	sub := r.store.client.Subscribe(ctx, r.store.ns.Freed())
	defer context.AfterFunc(ctx, func() { _ = sub.Close() })() // Receive does not heed ctx
	defer sub.Close()
	for {
		message, err := sub.Receive(ctx)
		switch m := message.(type) {
		case *redis.Subscription: // the first, or after a reconnect
			r.forgetAll()
			r.hearing.Store(true)
		case *redis.Message:
			r.forget(token.ID(m.Payload))
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			r.hearing.Store(false)
			r.forgetAll()
			if !pause(ctx, flushEvery) {
				return nil
			}
		}
	}
}
