// Package usage is the record that travels from tracker to indexer, and the bus
// it travels on.
//
// A record says how much of a resource a token has used in one minute, so far.
// Its values are absolute and only grow, so records may be lost and sent again,
// doubled or reordered: merging is the element-wise maximum.
//
//	12:07:10  {T, search, 12:07, admitted 3, rejected 0}
//	12:07:40  {T, search, 12:07, admitted 9, rejected 2}
//	merged    {T, search, 12:07, admitted 9, rejected 2}   in any order, any number of times
package usage

import (
	"context"

	"github.com/tallygate/tallygate/internal/token"
)

// Key says what a record is about: the identity under which records merge.
type Key struct {
	Token    token.ID
	Resource string // canonical; "" is the default resource
	Minute   int64  // epoch minute: unix seconds / 60
}

// Totals are units, absolute since the minute began.
type Totals struct {
	Admitted int64
	Rejected int64
	Refunded int64
	// Last is when the token was last admitted in that minute, unix seconds, as
	// exactly as the tracker saw it; 0 when it was not.
	Last int64
}

// Max returns the element-wise maximum of t and u.
func (t Totals) Max(u Totals) Totals {
	return Totals{max(t.Admitted, u.Admitted), max(t.Rejected, u.Rejected), max(t.Refunded, u.Refunded), max(t.Last, u.Last)}
}

// Record is one (token, resource, minute) and its totals so far.
type Record struct {
	Key
	Totals
}

// Applied is the record of one cell that was accounted for.
type Applied struct {
	Record
	// Moved is how many units, of all three kinds together, were accounted for
	// just now; 0 when the account held them already.
	Moved int64
}

// Batch is what one call moves. Order matters for nothing in it.
type Batch struct {
	Records []Record
	Events  []Event
}

// Publisher puts batches on a bus.
type Publisher interface {
	// Publish returns nil once the bus holds the whole batch; after an error some
	// of it may have been published, and sending all of it again is harmless.
	Publish(ctx context.Context, batch Batch) error
}

// Consumer takes batches off a bus, everything at least once.
type Consumer interface {
	// Consume calls handle with batches, one at a time, until ctx ends or handle
	// fails. A batch counts as consumed only after handle returned nil; whatever
	// was not is delivered again, to this consumer or to another of its group.
	// It returns nil when ctx ended.
	Consume(ctx context.Context, handle func(ctx context.Context, batch Batch) error) error
}
