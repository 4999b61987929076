// Package quotatest holds the tests that every store of decisions passes: the
// same cases and the same generated sequences, compared with the pure arithmetic
// of package quota decision for decision, and with what was counted.
package quotatest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// Store is a store under test.
type Store interface {
	// DecideAll decides requests; results[i] answers requests[i].
	DecideAll(ctx context.Context, requests []quota.Request) []quota.Result
	Adjust(ctx context.Context, j quota.Adjustment) error
	Settle(ctx context.Context, t quota.Settlement) error
	Release(ctx context.Context, id token.ID, lease string, limits []quota.Limit) error
}

// Counted are the units that a store counted in one cell.
type Counted struct{ Admitted, Rejected, Refunded int64 }

// Subject is a store and the means to look into it.
type Subject struct {
	Store
	// Counted reads the usage counters of a token, resource and epoch minute.
	Counted func(id token.ID, resource string, minute int64) Counted
}

// Clock is a clock that the test moves. It is safe for concurrent use.
type Clock struct{ at atomic.Int64 }

// Now returns the time in unix ms.
func (c *Clock) Now(context.Context) (int64, error) { return c.at.Load(), nil }

// UnixMilli returns the time in unix ms.
func (c *Clock) UnixMilli() int64 { return c.at.Load() }

// Set sets the time in unix ms.
func (c *Clock) Set(at int64) { c.at.Store(at) }

// Epoch returns a time in unix ms from which tests start: a full day some days
// ahead, so that a real server, which goes by its own clock, expires nothing.
func Epoch() int64 {
	const day = int64(24 * time.Hour / time.Millisecond)
	return (time.Now().UnixMilli()/day + 3) * day
}

// Run runs the suite. open returns a store whose time is clock's; it is called
// once per test.
func Run(t *testing.T, open func(t *testing.T, clock *Clock) Subject) {
	for name, test := range map[string]func(*testing.T, Subject, *Clock){
		"cases":     testCases,
		"batches":   testBatches,
		"sequences": testSequences,
	} {
		t.Run(name, func(t *testing.T) {
			clock := new(Clock)
			clock.Set(Epoch())
			test(t, open(t, clock), clock)
		})
	}
}

// Oracle is the pure arithmetic as a Store. It is not safe for concurrent use.
type Oracle struct {
	Clock    *Clock
	accounts map[token.ID]*quota.Account
}

// DecideAll implements Store.
func (o *Oracle) DecideAll(_ context.Context, requests []quota.Request) []quota.Result {
	var batch quota.Batch
	batch.Group(requests)
	answers := make([]quota.EntryAnswer, len(batch.Entries))
	for i, e := range batch.Entries {
		answers[i], _ = o.account(e.Token).Decide(e.Request, e.Count, o.Clock.UnixMilli())
	}
	results := make([]quota.Result, len(requests))
	batch.Answer(results, answers)
	return results
}

// Adjust implements Store.
func (o *Oracle) Adjust(_ context.Context, j quota.Adjustment) error {
	if j.At == 0 || j.Kind == quota.Grant || j.Kind == quota.Reset {
		j.At = o.Clock.UnixMilli()
	}
	_, err := o.account(j.Token).Adjust(&j, o.Clock.UnixMilli())
	return err
}

// Settle implements Store.
func (o *Oracle) Settle(_ context.Context, t quota.Settlement) error {
	_, err := o.account(t.Token).Settle(&t, o.Clock.UnixMilli())
	return err
}

// Release implements Store.
func (o *Oracle) Release(_ context.Context, id token.ID, lease string, limits []quota.Limit) error {
	o.account(id).Release(lease, limits)
	return nil
}

func (o *Oracle) account(id token.ID) *quota.Account {
	a := o.accounts[id]
	if a == nil {
		if o.accounts == nil {
			o.accounts = make(map[token.ID]*quota.Account)
		}
		a = new(quota.Account)
		o.accounts[id] = a
	}
	return a
}

// Counted is the Subject's.
func (o *Oracle) Counted(id token.ID, resource string, minute int64) Counted {
	return CountedIn(o.account(id).Cell(resource, minute))
}

// CountedIn are the units in a cell, which may be nil.
func CountedIn(c *quota.Cell) Counted {
	if c == nil {
		return Counted{}
	}
	return Counted{c.Admitted, c.Rejected, c.Refunded}
}

// words are a decision in short: a case is read more easily so.
func words(r quota.Result) string {
	if r.Err != nil {
		return "error"
	}
	s := "refused"
	if r.Allowed {
		s = "allowed"
	}
	for _, l := range r.Limits {
		s += fmt.Sprintf(", %d left", l.Remaining)
		if l.Reset > 0 {
			s += fmt.Sprintf(" reset %s", l.Reset)
		}
		if l.RetryAfter > 0 {
			s += " retry " + retry(l.RetryAfter)
		}
	}
	if !r.Allowed {
		s += fmt.Sprintf("; by %d after %s", r.Violated, retry(r.RetryAfter))
	}
	return s
}

func retry(d time.Duration) string {
	if d == quota.Never {
		return "never"
	}
	return d.String()
}
