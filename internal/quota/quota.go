// Package quota holds the words of a decision and its arithmetic.
//
//	request   token T uses cost units of a resource
//	limit     at most Quota units per Window, by one algorithm, for all or some resources
//	decision  allowed or not; per limit what remains and when it is whole again
//
// A worked example, one limit of 3 units per 1m, epoch-aligned, asked at second 50
// of a minute for 2 units twice:
//
//	first   allowed   remaining 1   reset in 10s
//	second  refused   remaining 1   reset in 10s   retry after 10s
//
// The refused request consumes nothing: a third one for 1 unit would be allowed.
//
// Nothing in this package reads a clock or does I/O: time is passed in, in unix
// milliseconds, and all arithmetic is in integers. It is the oracle that the
// Redis scripts and the in-process store are tested against.
package quota

import (
	"time"

	"github.com/tallygate/tallygate/internal/token"
)

// Request asks to use Cost units. It is a value that several goroutines may
// share: nobody changes a request or its limits after it was made.
type Request struct {
	Token    token.ID
	Resource string // canonical, see token.ParseResource; "" is the default resource
	Cost     int64  // units, 0 to MaxCost; 0 is a peek: it reports and consumes nothing, and is
	// refused only where more than the quota is used
	// Limits are those of the token's policy that cover Resource. All or nothing:
	// the request is allowed only if every one of them allows it. None at all
	// means unlimited; the usage is counted all the same.
	Limits []Limit
	// Lease names what a request takes from limits of concurrency, and is unique to
	// it: it is how the units are released. Asking again under a lease that is
	// still held prolongs it and takes nothing more from those limits.
	Lease string
	// Reserve makes an allowed request a reservation of that name, unique to it:
	// its cost is an estimate until it is settled. ReserveFor is for how long it can
	// be; whole milliseconds, at most the store's grace. What is not settled by then
	// stays as it is.
	Reserve    string
	ReserveFor time.Duration
	// Overdraft says that the units have been used already: they are counted as
	// admitted and taken from every limit even where they do not fit. Allowed says
	// whether they did.
	Overdraft bool
	// Blocked refuses the request before any limit is asked; its cost is counted
	// as rejected.
	Blocked bool
}

// MaxCost is the largest cost of one request and the largest quota, in units.
// Lua's numbers hold integers exactly up to 2^53; sums stay below that.
const MaxCost = 1 << 40

// Decision answers one request. Its fields tell the client what to do next.
type Decision struct {
	Allowed bool
	At      int64 // unix ms by the store's clock: when it was decided
	// Limits has one status per limit of the request, in its order; nil for a
	// blocked request. The slice may be shared between equal requests of one
	// batch, which are all told the state after the last of them: read only.
	Limits []Status
	// Violated is the index in Limits of the limit that refused and takes longest
	// to allow the same request; -1 when none refused.
	Violated int
	// RetryAfter is how long until the same request can be allowed if nobody else
	// uses the token meanwhile; 0 when allowed, Never when it cannot ever fit.
	RetryAfter time.Duration
}

// Never is the RetryAfter of a request whose cost exceeds a limit's quota.
const Never time.Duration = 1<<63 - 1

// Status is one limit's state after a decision.
type Status struct {
	Remaining  int64         // units that could be used now; never negative
	Reset      time.Duration // until all of the quota is available again if nothing is used meanwhile
	RetryAfter time.Duration // 0 unless this limit refused, or would have as a shadow
}

// Result is what a store answers for one request: a decision, or why there is none.
type Result struct {
	Decision
	Err error
}

// Outcome is the one word for what became of a request: it is the value in
// responses, logs and metric labels alike.
type Outcome string

// The outcomes.
const (
	Admitted Outcome = "admitted"
	Rejected Outcome = "rejected"
	Failed   Outcome = "failed" // the store gave no answer
)

// Outcome returns the word for r.
func (r Result) Outcome() Outcome {
	switch {
	case r.Err != nil:
		return Failed
	case r.Allowed:
		return Admitted
	}
	return Rejected
}
