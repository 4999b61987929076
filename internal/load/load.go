// Package load generates load and keeps an account of it that any other account
// can be audited against.
//
//	decider   what is asked: an enforcer over HTTP, an in-process store, or the classic recipe
//	request   token, resource, cost and policy, chosen by the seed: request n is the same in every run
//	answer    admitted or rejected; without one the request is failed or unknown
//	failed    no answer, and certainly nothing was counted (nobody listened, it was refused as malformed)
//	unknown   no answer, and it may have been counted (a timeout, a connection cut, a 5xx)
//	report    units per token, and per token, resource and minute
//
// A worked example: 10 requests of cost 2 for one token with 12 units left, the
// tenth cut off in mid-air. The report says admitted 12 units, rejected 6, unknown
// 2. An exact account then holds 12 admitted and 6 rejected units, and 2 more of
// either if the tenth arrived: never anything else.
package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/tallygate/tallygate/internal/quota"
)

// Unknown is the outcome of a request that got no answer and may have been
// counted. The other outcomes are quota's: here Failed means that nothing was
// counted.
const Unknown quota.Outcome = "unknown"

// Outcomes are all outcomes, in the order in which they are reported.
var Outcomes = [...]quota.Outcome{quota.Admitted, quota.Rejected, quota.Failed, Unknown}

// ErrNotCounted is wrapped by a Decider's error when the request certainly was not
// counted. Every other error leaves it unknown.
var ErrNotCounted = errors.New("not counted")

// Request is one request of the load. Token and Resource are texts, as a caller
// sends them.
type Request struct {
	Token    string
	Resource string
	Cost     int64  // units
	Policy   string // "" is the decider's default
}

// Answer is what a decider said.
type Answer struct {
	Outcome quota.Outcome // Admitted or Rejected
	At      int64         // unix ms by the decider's clock; 0 when it did not say
}

// Decider is asked by a Generator, from many goroutines at once.
type Decider interface {
	// Decide asks exactly once: it never sends a request again that may have been
	// counted. It returns by itself in bounded time, since a Generator that stops
	// still waits for the answers under way.
	Decide(ctx context.Context, r Request) (Answer, error)
}

// Options say what load to generate. The zero value is one worker that asks 1000
// times for 100 tokens in turn of chance, one unit each.
type Options struct {
	Concurrency int           // workers, overriding the default 1
	Iterations  int64         // requests per worker on average, overriding the default 1000, or no bound when Duration is set
	Duration    time.Duration // how long to send; 0 means until the iterations are done
	Rate        float64       // requests per second over all workers; 0 means as fast as answers come
	Seed        uint64        // chooses tokens, resources and costs
	Tokens      int           // how many tokens, overriding the default 100
	TokenPrefix string        // of their texts, overriding the default "load-"
	Zipf        float64       // exponent > 1 of the tokens' popularity; 0 means all alike
	Resources   []Choice      // overriding the default: only the default resource
	Costs       []Cost        // overriding the default: 1 unit
	Policy      string        // of every request; "" leaves it to the decider
}

// Choice is a resource and how often it is chosen relative to the others.
type Choice struct {
	Resource string
	Weight   int // 1 or more
}

// Cost is a cost and how often it is chosen relative to the others.
type Cost struct {
	Units  int64
	Weight int // 1 or more
}

// Generator sends one run of load. Its methods are safe for concurrent use, but
// Run may be called only once.
type Generator struct {
	decider Decider
	opts    Options
	total   int64 // requests; 0 means no bound
	tokens  []string
	next    atomic.Int64
	sent    [len(Outcomes)]atomic.Int64
}

// New returns a generator that asks decider. It reports every option that makes no
// sense at once.
func New(decider Decider, opts Options) (*Generator, error) {
	if err := opts.check(); err != nil {
		return nil, err
	}
	opts.Concurrency = orDefault(opts.Concurrency, 1)
	opts.Tokens = orDefault(opts.Tokens, 100)
	opts.TokenPrefix = orDefault(opts.TokenPrefix, "load-")
	if opts.Iterations == 0 && opts.Duration == 0 {
		opts.Iterations = 1000
	}
	if len(opts.Resources) == 0 {
		opts.Resources = []Choice{{Weight: 1}}
	}
	if len(opts.Costs) == 0 {
		opts.Costs = []Cost{{Units: 1, Weight: 1}}
	}
	g := &Generator{decider: decider, opts: opts, total: opts.Iterations * int64(opts.Concurrency)}
	g.tokens = make([]string, opts.Tokens)
	width := len(fmt.Sprint(opts.Tokens - 1))
	for i := range g.tokens {
		g.tokens[i] = fmt.Sprintf("%s%0*d", opts.TokenPrefix, width, i)
	}
	return g, nil
}

func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func (o *Options) check() error {
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(o.Concurrency < 0, "concurrency is %d: use 1 or more", o.Concurrency)
	refuse(o.Iterations < 0, "iterations is %d: use 1 or more", o.Iterations)
	refuse(o.Duration < 0, "duration is %s: use a positive one", o.Duration)
	refuse(!(o.Rate >= 0), "rate is %g: use requests per second, or 0 for as fast as answers come", o.Rate)
	refuse(o.Tokens < 0, "tokens is %d: use 1 or more", o.Tokens)
	refuse(o.Zipf != 0 && !(o.Zipf > 1), "zipf is %g: use an exponent above 1 such as 1.1, or 0 for tokens that are all alike", o.Zipf)
	for _, r := range o.Resources {
		refuse(r.Weight < 1, "resource %q has weight %d: use 1 or more", r.Resource, r.Weight)
	}
	for _, c := range o.Costs {
		refuse(c.Weight < 1, "cost %d has weight %d: use 1 or more", c.Units, c.Weight)
		refuse(c.Units < 0 || c.Units > quota.MaxCost, "cost %d: use 0 to %d units", c.Units, int64(quota.MaxCost))
	}
	return errors.Join(errs...)
}

// Progress is how far a run has come.
type Progress struct {
	Requests [len(Outcomes)]int64 // answered or given up, by outcome as in Outcomes
	Total    int64                // requests to be sent; 0 means no bound
}

// Done is the number of requests that are over.
func (p Progress) Done() int64 {
	var n int64
	for _, c := range p.Requests {
		n += c
	}
	return n
}

// Progress tells how far Run has come; most callers poll it to show it.
func (g *Generator) Progress() Progress {
	p := Progress{Total: g.total}
	for i := range p.Requests {
		p.Requests[i] = g.sent[i].Load()
	}
	return p
}

// Run sends the load until it is done, its duration is over, or ctx ends, and
// reports all of it; an ended ctx is no error. Requests that are under way are
// waited for in each case, so that the report leaves out nothing.
func (g *Generator) Run(ctx context.Context) *Report {
	issuing := ctx
	if g.opts.Duration > 0 {
		var cancel context.CancelFunc
		issuing, cancel = context.WithTimeout(ctx, g.opts.Duration)
		defer cancel()
	}
	// What was sent is waited for even though the run ends: cutting it off would
	// turn certain outcomes into unknown ones.
	asking := context.WithoutCancel(ctx)
	start := time.Now()
	workers := make([]*worker, g.opts.Concurrency)
	var wg sync.WaitGroup
	for i := range workers {
		w := newWorker(g)
		workers[i] = w
		wg.Go(func() { w.run(issuing, asking, start) })
	}
	wg.Wait()
	return g.report(start, time.Now(), workers)
}

// pause is how long a worker waits after an outage's sign, so that a dead
// enforcer is not asked in a busy loop.
const pause = 20 * time.Millisecond

// worker asks one request after the other. Only its own goroutine touches it.
type worker struct {
	g       *Generator
	pcg     *rand.PCG
	rand    *rand.Rand
	zipf    *rand.Zipf
	cells   map[cell]*tally
	latency *hdrhistogram.Histogram // µs
	errs    errorCounts
	timer   *time.Timer
}

// cell is what units are accounted under.
type cell struct {
	token    int32 // index in Generator.tokens
	resource int32 // index in Options.Resources
	minute   int64 // epoch minute; 0 when the decider did not tell
}

// tally is units by outcome, as in Outcomes.
type tally [len(Outcomes)]int64

const maxLatency = 10 * time.Minute

func newWorker(g *Generator) *worker {
	pcg := rand.NewPCG(0, 0)
	w := &worker{
		g: g, pcg: pcg, rand: rand.New(pcg),
		cells:   map[cell]*tally{},
		latency: hdrhistogram.New(1, maxLatency.Microseconds(), 3),
		errs:    errorCounts{},
	}
	w.timer = time.NewTimer(0)
	if g.opts.Zipf > 0 {
		w.zipf = rand.NewZipf(w.rand, g.opts.Zipf, 1, uint64(g.opts.Tokens-1))
	}
	return w
}

func (w *worker) run(issuing, asking context.Context, start time.Time) {
	defer w.timer.Stop()
	for issuing.Err() == nil {
		n := w.g.next.Add(1) - 1
		if w.g.total > 0 && n >= w.g.total {
			return
		}
		began := time.Now()
		if w.g.opts.Rate > 0 {
			// Latency counts from when the request was due, so that a stall shows in
			// every request that it held up and not in one alone.
			began = start.Add(time.Duration(float64(n) / w.g.opts.Rate * float64(time.Second)))
			if !w.wait(issuing, time.Until(began)) {
				return
			}
		}
		if outcome := w.ask(asking, n, began); outcome == quota.Failed || outcome == Unknown {
			w.wait(issuing, pause)
		}
	}
}

// wait waits for d, and reports false when ctx ended before.
func (w *worker) wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	w.timer.Reset(d)
	select {
	case <-w.timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (w *worker) ask(ctx context.Context, n int64, began time.Time) quota.Outcome {
	c, r := w.choose(n)
	answer, err := w.g.decider.Decide(ctx, r)
	i := index(answer.Outcome, err)
	if err != nil {
		w.errs.add(err)
	} else if answer.At > 0 {
		c.minute = answer.At / 60_000
	}
	_ = w.latency.RecordValue(min(max(1, time.Since(began).Microseconds()), maxLatency.Microseconds())) // always in range
	t := w.cells[c]
	if t == nil {
		t = new(tally)
		w.cells[c] = t
	}
	t[i] += r.Cost
	w.g.sent[i].Add(1)
	return Outcomes[i]
}

func index(o quota.Outcome, err error) int {
	switch {
	case err == nil && o == quota.Admitted:
		return 0
	case err == nil && o == quota.Rejected:
		return 1
	case errors.Is(err, ErrNotCounted):
		return 2
	}
	return 3
}

// choose makes request n. It depends on the seed and n alone, so that a run can be
// repeated whatever the number of workers.
func (w *worker) choose(n int64) (cell, Request) {
	o := &w.g.opts
	w.pcg.Seed(o.Seed, uint64(n))
	var c cell
	if w.zipf != nil {
		c.token = int32(w.zipf.Uint64())
	} else {
		c.token = int32(w.rand.IntN(o.Tokens))
	}
	r := Request{Token: w.g.tokens[c.token], Policy: o.Policy}
	c.resource = int32(pick(w.rand, o.Resources, func(c Choice) int { return c.Weight }))
	r.Resource = o.Resources[c.resource].Resource
	r.Cost = o.Costs[pick(w.rand, o.Costs, func(c Cost) int { return c.Weight })].Units
	return c, r
}

// pick returns the index of an element of s, chosen by weight.
func pick[T any](r *rand.Rand, s []T, weight func(T) int) int {
	if len(s) == 1 {
		return 0
	}
	sum := 0
	for _, e := range s {
		sum += weight(e)
	}
	n := r.IntN(sum)
	for i, e := range s {
		if n -= weight(e); n < 0 {
			return i
		}
	}
	return len(s) - 1
}
