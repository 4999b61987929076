// Package limit is Tallygate for Go programs: a limiter, and net/http middleware
// on it. Package grpclimit has the same for gRPC.
//
// A Limiter decides in process, on a Redis that it shares with others, or by
// asking an enforcer; what it admits is accounted for like any other usage:
//
//	limiter := limit.New(limit.Redis(client), limit.PerMinute(60), limit.PerDay(10_000))
//	http.Handle("/", limiter.Middleware()(handler))
//
// The classic question, how long has this subject to wait, is one call:
//
//	left, err := limiter.Left(ctx, "jane")
package limit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/enforcer"
	"github.com/tallygate/tallygate/internal/memory"
	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// ErrUnavailable is wrapped by errors that say that nothing was decided, since the
// counters cannot be reached.
var ErrUnavailable = errors.New("the counters cannot be reached")

// Limit allows at most Quota units per Window, in windows aligned to the epoch.
type Limit struct {
	Name   string // unique in its limiter, of [a-z0-9-]; part of headers and keys
	Quota  int64  // units
	Window time.Duration
}

// PerSecond allows n units a second.
func PerSecond(n int64) Limit { return Limit{"second", n, time.Second} }

// PerMinute allows n units a minute.
func PerMinute(n int64) Limit { return Limit{"minute", n, time.Minute} }

// PerHour allows n units an hour.
func PerHour(n int64) Limit { return Limit{"hour", n, time.Hour} }

// PerDay allows n units a day, in UTC.
func PerDay(n int64) Limit { return Limit{"day", n, 24 * time.Hour} }

// Store is where counts are kept: Memory or Redis.
type Store struct{ decides enforcer.Store }

// Memory keeps counts in the process: nothing else is needed, and nobody else sees them.
func Memory() Store { return Store{memory.New(memory.Options{})} }

// Redis keeps counts in Redis, for all processes that use it. The client stays the
// caller's to close. Calls of several goroutines at a time are sent together.
func Redis(client redis.UniversalClient) Store {
	return Store{counters.NewGroup(counters.NewStore(client, counters.Options{}), counters.GroupOptions{})}
}

// Limiter decides by its limits: a request is admitted if every one of them has
// room, and takes nothing otherwise. It is safe for concurrent use.
type Limiter struct{ enforcer *enforcer.Enforcer }

// New returns a limiter. Limits that make no sense (a quota below 1, a window
// below a second, a name that stands twice) are a mistake of the program: it panics.
func New(store Store, limits ...Limit) *Limiter {
	c := config.Default()
	policy := config.Policy{Unlimited: len(limits) == 0}
	seen := map[string]bool{}
	for _, l := range limits {
		if l.Name == "" || l.Quota < 1 || l.Quota > quota.MaxCost || l.Window < time.Second || l.Window%time.Millisecond != 0 || seen[l.Name] {
			panic(fmt.Sprintf("limit: %+v is no limit, or its name stands twice", l))
		}
		seen[l.Name] = true
		policy.Limits = append(policy.Limits, config.Limit{Name: l.Name, Algorithm: "fixed_window", Quota: l.Quota, Window: l.Window})
	}
	c.Policies = map[string]config.Policy{c.DefaultPolicy: policy}
	return &Limiter{enforcer.New(store.decides, enforcer.Compile(c), enforcer.Options{})}
}

// Request is what a subject asks for.
type Request struct {
	Token    string // who asks: an API key, a user, an address; at most 256 bytes
	Resource string // what for; empty is the default resource
	Cost     int64  // units; 0 looks without taking
}

// Decision answers a request.
type Decision struct {
	Allowed    bool
	Remaining  int64         // units that could be used now, by the tightest limit
	RetryAfter time.Duration // until the same request can be allowed; 0 when it was
}

// Decide decides a request.
func (l *Limiter) Decide(ctx context.Context, r Request) (Decision, error) {
	answer, _, err := l.decide(ctx, r)
	if err != nil {
		return Decision{}, err
	}
	d := Decision{Allowed: answer.Allowed, RetryAfter: answer.RetryAfter}
	for i, s := range answer.Limits {
		if i == 0 || s.Remaining < d.Remaining {
			d.Remaining = s.Remaining
		}
	}
	return d, nil
}

// Left takes one unit for a subject and returns how long it has to wait: 0 when
// the unit was free, and then it is taken.
func (l *Limiter) Left(ctx context.Context, subject string) (time.Duration, error) {
	d, err := l.Decide(ctx, Request{Token: subject, Cost: 1})
	return d.RetryAfter, err
}

func (l *Limiter) decide(ctx context.Context, r Request) (enforcer.Answer, enforcer.Query, error) {
	q := enforcer.Query{Cost: r.Cost}
	var err error
	if q.Token, err = token.Parse(r.Token); err != nil {
		return enforcer.Answer{}, q, err
	}
	if q.Resource, err = token.ParseResource(r.Resource); err != nil {
		return enforcer.Answer{}, q, err
	}
	answer, err := l.enforcer.Decide(ctx, q)
	if err == nil && answer.Err != nil {
		err = fmt.Errorf("%w: %w", ErrUnavailable, answer.Err)
	}
	return answer, q, err
}
