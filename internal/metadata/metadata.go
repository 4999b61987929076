// Package metadata is what is known about a token beside its counters: when it
// was first and last used, and how much in all.
//
// It is one hash per token, in the slot of the token's counters:
//
//	HGETALL {api:abc}:data
//	ops 1042  last 1762874079  first 1762780000  rejected 7  refunded 0
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
const (
	FieldOps      = "ops"      // admitted units, ever
	FieldLast     = "last"     // last admitted use, unix seconds
	FieldFirst    = "first"    // first admitted use, unix seconds
	FieldRejected = "rejected" // rejected units, ever
	FieldRefunded = "refunded" // refunded units, ever
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
}

// Parse reads the fields of a hash; fields that it does not know are ignored. The
// error wraps ErrMalformed.
func Parse(hash map[string]string) (Meta, error) {
	var m Meta
	for name, into := range map[string]*int64{
		FieldOps: &m.Ops, FieldRejected: &m.Rejected, FieldRefunded: &m.Refunded,
		FieldFirst: &m.First, FieldLast: &m.Last,
	} {
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

// Hash returns the fields as Parse reads them and as the tracker writes them:
// figures that are 0 and have never moved are absent.
func (m Meta) Hash() map[string]string {
	hash := make(map[string]string, 5)
	for name, n := range map[string]int64{
		FieldOps: m.Ops, FieldRejected: m.Rejected, FieldRefunded: m.Refunded,
		FieldFirst: m.First, FieldLast: m.Last,
	} {
		if n != 0 {
			hash[name] = strconv.FormatInt(n, 10)
		}
	}
	return hash
}

// Move returns m after the given units were accounted for, admitted last at
// second at (unix). It is what metadata.lua does.
func (m Meta) Move(admitted, rejected, refunded, at int64) Meta {
	m.Ops += admitted
	m.Rejected += rejected
	m.Refunded += refunded
	if admitted > 0 {
		m.Last = max(m.Last, at)
		if m.First == 0 || at < m.First {
			m.First = at
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
