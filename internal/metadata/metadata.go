// Package metadata is what is known about a token beside its counters: when it
// was first and last used, and how much in all.
//
// It is one hash per token, in the slot of the token's counters:
//
//	HGETALL {api:abc}:data
//	token abc  ops 1042  last 1762874079  first 1762780000  rejected 7  refunded 0
//	minute 29381234  rate 9  peak 240  peak_minute 29380001
//
// The tracker is its only writer; it moves the hash in the same script call that
// marks the counters as accounted for, so the totals are exact.
package metadata

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/token"
)

// The fields of the hash. Ops and Last keep the names of the classic recipe.
// Whoever configures a token may keep further fields there.
const (
	FieldToken      = "token"       // the token's ID, for indexes that do not see the key
	FieldOps        = "ops"         // admitted units, ever
	FieldLast       = "last"        // last admitted use, unix seconds
	FieldFirst      = "first"       // first admitted use, unix seconds
	FieldRejected   = "rejected"    // rejected units, ever
	FieldRefunded   = "refunded"    // refunded units, ever
	FieldMinute     = "minute"      // latest epoch minute with an admitted use
	FieldRate       = "rate"        // admitted units of that minute so far
	FieldPeak       = "peak"        // admitted units of the busiest minute
	FieldPeakMinute = "peak_minute" // the epoch minute of the peak
	FieldPercent    = "percent"     // highest percentage of any quota used; 0 unless somebody keeps it
)

// Key returns the key of id's metadata: a hash without TTL.
func Key(namespace string, id token.ID) string {
	return token.Tag(namespace, id) + ":data"
}

// Lua defines metadata_move, which adds to a hash; the header of the file says
// how it is called. A script that contains it calls it at most once per token.
//
//go:embed metadata.lua
var Lua string

// ErrMalformed is returned for a hash whose figures are not figures.
var ErrMalformed = errors.New("malformed metadata")

// Meta is a token's metadata. The zero value is that of a token never seen.
type Meta struct {
	Ops      int64 // admitted units, ever
	Rejected int64 // units, ever
	Refunded int64 // units, ever
	First    int64 // first admitted use, unix seconds; 0 when never admitted
	Last     int64 // last admitted use, unix seconds; 0 when never admitted
	// Minute is the latest epoch minute with an admitted use, and Rate the units
	// admitted in it so far, over all resources.
	Minute, Rate int64
	// Peak is the most units admitted in one minute, PeakMinute, as far as the
	// minutes were accounted for in their order: what is found late, of a minute
	// before the latest one, adds to the totals and not to a peak.
	Peak, PeakMinute int64
}

// figures returns the fields of m by their names in the hash.
func (m *Meta) figures() map[string]*int64 {
	return map[string]*int64{
		FieldOps: &m.Ops, FieldRejected: &m.Rejected, FieldRefunded: &m.Refunded,
		FieldFirst: &m.First, FieldLast: &m.Last, FieldMinute: &m.Minute,
		FieldRate: &m.Rate, FieldPeak: &m.Peak, FieldPeakMinute: &m.PeakMinute,
	}
}

// Parse reads the fields of a hash; those that are absent are 0, and those that
// it does not know are ignored. The error wraps ErrMalformed.
func Parse(hash map[string]string) (Meta, error) {
	var m Meta
	for name, into := range m.figures() {
		text, ok := hash[name]
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return Meta{}, fmt.Errorf("%w: field %s is %.32q", ErrMalformed, name, text)
		}
		*into = n
	}
	return m, nil
}

// Hash returns the fields that the tracker writes for id.
func (m Meta) Hash(id token.ID) map[string]string {
	hash := map[string]string{FieldToken: string(id), FieldPercent: "0"}
	for name, n := range m.figures() {
		hash[name] = strconv.FormatInt(*n, 10)
	}
	return hash
}

// Move is what was newly accounted for of one minute.
type Move struct {
	Minute   int64 // epoch minute
	Admitted int64 // units
	Rejected int64 // units
	Refunded int64 // units
	At       int64 // last admitted use among them, unix seconds; ignored when none was
}

// Add returns m after move, as metadata.lua does. Moves of several minutes are
// added in the order of their minutes.
func (m Meta) Add(move Move) Meta {
	m.Ops += move.Admitted
	m.Rejected += move.Rejected
	m.Refunded += move.Refunded
	if move.Admitted == 0 {
		return m
	}
	if m.First == 0 || move.At < m.First {
		m.First = move.At
	}
	m.Last = max(m.Last, move.At)
	if move.Minute > m.Minute {
		m.Minute, m.Rate = move.Minute, 0
	}
	if move.Minute == m.Minute {
		m.Rate += move.Admitted
		if m.Rate > m.Peak {
			m.Peak, m.PeakMinute = m.Rate, move.Minute
		}
	}
	return m
}

// Read returns the metadata of the given tokens in their order, the zero Meta
// for those never seen, in one pipeline.
func Read(ctx context.Context, client redis.UniversalClient, namespace string, ids ...token.ID) ([]Meta, error) {
	replies := make([]*redis.MapStringStringCmd, len(ids))
	_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, id := range ids {
			replies[i] = pipe.HGetAll(ctx, Key(namespace, id))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the metadata of %d tokens: %w", len(ids), err)
	}
	metas := make([]Meta, len(ids))
	for i, reply := range replies {
		if metas[i], err = Parse(reply.Val()); err != nil {
			return nil, err
		}
	}
	return metas, nil
}
