package counters

import (
	"context"
	"fmt"
	"sync"

	"github.com/tallygate/tallygate/internal/quota"
)

// BatchSize is the most requests that one batch holds. Larger ones gain nothing
// and keep Redis from everybody else for longer.
const BatchSize = 128

// Batched is a store as Group needs it.
type Batched interface {
	// DecideAll decides requests; results[i] answers requests[i].
	DecideAll(ctx context.Context, requests []quota.Request) []quota.Result
}

// GroupOptions of a Group. The zero value is valid.
type GroupOptions struct {
	// InFlight overrides the default 2: how many batches may be on their way at
	// once. With one Redis waits while answers are read; more make batches smaller.
	InFlight int
}

// Group decides single requests in batches, by group commit without a timer: a
// request that finds the store idle is sent at once, and those that come while it
// is busy make the next batch. It is safe for concurrent use.
type Group struct {
	store    Batched
	inFlight int
	refusals *refusals // nil where the store is none of ours

	mu       sync.Mutex
	running  int      // goroutines that send batches
	starting int      // those of them that have not taken one yet
	open     []*batch // waiting, the last one may have room
	idle     chan struct{}
}

// batch is requests that are decided together.
type batch struct {
	requests []quota.Request
	gone     []bool // whose caller left before it was sent; may be shorter
	sent     bool
	results  []quota.Result // valid once done is closed
	done     chan struct{}
}

// NewGroup returns a group in front of store.
func NewGroup(store Batched, o GroupOptions) *Group {
	if o.InFlight <= 0 {
		o.InFlight = 2
	}
	g := &Group{store: store, inFlight: o.InFlight}
	if s, ok := store.(*Store); ok {
		g.refusals = newRefusals(s)
	}
	return g
}

// Run lets the group refuse what is known to be refused without asking the store,
// for as long as it runs: it follows what other processes give back. It returns
// nil when ctx ends.
func (g *Group) Run(ctx context.Context) error {
	if g.refusals == nil {
		<-ctx.Done()
		return nil
	}
	return g.refusals.follow(ctx)
}

// Decide decides a request. When ctx ends first it returns at once with an error:
// a request that was already sent may still be counted, see MayHaveCounted.
func (g *Group) Decide(ctx context.Context, request quota.Request) quota.Result {
	if err := request.Check(); err != nil {
		return quota.Result{Err: err}
	}
	if ctx.Err() != nil {
		return quota.Result{Err: leftBeforeSent(ctx)}
	}
	var heard uint64
	if g.refusals != nil {
		if refused, ok := g.refusals.refuse(ctx, &request); ok {
			return refused
		}
		heard = g.refusals.heard(request.Token)
	}
	b, i := g.join(ctx, request)
	select {
	case <-b.done:
		if g.refusals != nil && b.results[i].Err == nil {
			g.refusals.remember(&request, &b.results[i].Decision, heard)
		}
		return b.results[i]
	case <-ctx.Done():
		return quota.Result{Err: g.leave(ctx, b, i, 1)}
	}
}

// DecideAll decides requests in one batch with those of other callers;
// results[i] answers requests[i]. A batch takes them all, even where that makes it
// larger than BatchSize. When ctx ends first each has an error, as in Decide.
func (g *Group) DecideAll(ctx context.Context, requests []quota.Request) []quota.Result {
	results := make([]quota.Result, len(requests))
	fail := func(err error) []quota.Result {
		for i := range results {
			results[i] = quota.Result{Err: err}
		}
		return results
	}
	for i := range requests {
		if err := requests[i].Check(); err != nil {
			return fail(fmt.Errorf("request %d: %w", i, err))
		}
	}
	if ctx.Err() != nil {
		return fail(leftBeforeSent(ctx))
	}
	if len(requests) == 0 {
		return results
	}
	b, first := g.join(ctx, requests...)
	select {
	case <-b.done:
		copy(results, b.results[first:])
		return results
	case <-ctx.Done():
		return fail(g.leave(ctx, b, first, len(requests)))
	}
}

// join adds requests to the batch that is sent next.
func (g *Group) join(ctx context.Context, requests ...quota.Request) (b *batch, first int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.open); n > 0 && len(g.open[n-1].requests) < BatchSize {
		b = g.open[n-1]
	} else {
		b = &batch{done: make(chan struct{})}
		g.open = append(g.open, b)
	}
	b.requests = append(b.requests, requests...)
	if g.running < g.inFlight && g.starting < len(g.open) {
		g.running++
		g.starting++
		// The batch outlives its first caller: others ride on it.
		go g.run(context.WithoutCancel(ctx))
	}
	return b, len(b.requests) - len(requests)
}

// leave takes a caller's n requests out of a batch; its error says whether they
// were sent.
func (g *Group) leave(ctx context.Context, b *batch, first, n int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if b.sent {
		return unavailable(n, context.Cause(ctx))
	}
	if more := len(b.requests) - len(b.gone); more > 0 {
		b.gone = append(b.gone, make([]bool, more)...)
	}
	for i := range n {
		b.gone[first+i] = true
	}
	return leftBeforeSent(ctx)
}

// run sends batches until none is waiting.
func (g *Group) run(ctx context.Context) {
	for b := g.take(true); b != nil; b = g.take(false) {
		b.decide(ctx, g.store)
		close(b.done)
	}
}

// take removes the oldest batch from those that wait; without one it returns nil
// and its goroutine ends.
func (g *Group) take(starting bool) *batch {
	g.mu.Lock()
	defer g.mu.Unlock()
	if starting {
		g.starting--
	}
	if len(g.open) == 0 {
		g.running--
		if g.running == 0 && g.idle != nil {
			close(g.idle)
			g.idle = nil
		}
		return nil
	}
	b := g.open[0]
	copy(g.open, g.open[1:])
	g.open = g.open[:len(g.open)-1]
	b.sent = true
	return b
}

func (b *batch) decide(ctx context.Context, store Batched) {
	if b.gone == nil {
		b.results = store.DecideAll(ctx, b.requests)
		return
	}
	var stayed []quota.Request
	for i, request := range b.requests {
		if i >= len(b.gone) || !b.gone[i] {
			stayed = append(stayed, request)
		}
	}
	results := store.DecideAll(ctx, stayed)
	b.results = make([]quota.Result, len(b.requests))
	for i, next := 0, 0; i < len(b.requests); i++ {
		if i >= len(b.gone) || !b.gone[i] {
			b.results[i] = results[next]
			next++
		}
	}
}

// Close waits until no batch is waiting or on its way, and counts the refusals
// that Redis was not asked about. The group remains usable.
func (g *Group) Close(ctx context.Context) error {
	if err := g.wait(ctx); err != nil || g.refusals == nil {
		return err
	}
	return g.refusals.flush(ctx)
}

func (g *Group) wait(ctx context.Context) error {
	g.mu.Lock()
	if g.running == 0 {
		g.mu.Unlock()
		return nil
	}
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	idle := g.idle
	g.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
