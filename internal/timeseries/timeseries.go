// Package timeseries keeps recent usage per token, resource and minute, close to
// the counters, for questions such as "how much in the last ten minutes".
//
// A series is a ring of buckets in one hash. Bucket i holds the latest minute m
// with m mod span = i, and says which minute that is:
//
//	series:{api:abc}:search   span 120
//	  "14" → "29381294:9:2:0"    minute 29381294: 9 admitted, 2 rejected, 0 refunded
//	  "15" → "29381175:4:0:0"    two hours old: known by its minute, skipped on read
//
// A bucket is overwritten when its turn comes round, so a busy token's series is
// bounded without anything ever having to be cleared; an idle token's series
// expires as a whole. Values are absolute: writing them twice changes nothing.
//
// The default span keeps the hash below Redis's limit for the compact encoding
// (128 entries of at most 64 bytes): about 3 kB per busy token and resource.
package timeseries

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/token"
)

// DefaultSpan is how many minutes a series holds unless configured otherwise.
const DefaultSpan = 120

// Key returns the key of a series: a hash that expires span minutes after the
// last write.
func Key(namespace string, id token.ID, resource string) string {
	return "series:" + token.Tag(namespace, id) + ":" + resource
}

// Lua defines series_put, which writes one bucket; the header of the file says
// how it is called.
//
//go:embed series.lua
var Lua string

// ErrMalformed is returned for a bucket that was not written by this package.
var ErrMalformed = errors.New("malformed series bucket")

// Point is the usage of one minute, or of several that were added up.
type Point struct {
	Minute   int64 // epoch minute at which the point begins
	Admitted int64 // units
	Rejected int64 // units
	Refunded int64 // units
}

// Plus returns p with q's units added.
func (p Point) Plus(q Point) Point {
	p.Admitted += q.Admitted
	p.Rejected += q.Rejected
	p.Refunded += q.Refunded
	return p
}

// Reader reads series. It is safe for concurrent use.
type Reader interface {
	// Points returns one point for each minute of [from, to) that has one, in
	// their order.
	Points(ctx context.Context, id token.ID, resource string, from, to int64) ([]Point, error)
}

// Ring reads series from Redis.
type Ring struct {
	client    redis.UniversalClient
	namespace string
}

// NewRing returns a reader of the series in a namespace.
func NewRing(client redis.UniversalClient, namespace string) *Ring {
	return &Ring{client, namespace}
}

// Points implements Reader. It reads the whole hash, one round trip, as that is
// cheaper than naming many of its fields.
func (r *Ring) Points(ctx context.Context, id token.ID, resource string, from, to int64) ([]Point, error) {
	hash, err := r.client.HVals(ctx, Key(r.namespace, id, resource)).Result()
	if err != nil {
		return nil, fmt.Errorf("read a series: %w", err)
	}
	points := make([]Point, 0, len(hash))
	for _, bucket := range hash {
		p, err := parseBucket(bucket)
		if err != nil {
			return nil, err
		}
		if from <= p.Minute && p.Minute < to {
			points = append(points, p)
		}
	}
	sortPoints(points)
	return points, nil
}

func parseBucket(text string) (Point, error) {
	var p Point
	rest, into := text, [...]*int64{&p.Minute, &p.Admitted, &p.Rejected, &p.Refunded}
	for i, n := range into {
		part, after, more := strings.Cut(rest, ":")
		v, err := strconv.ParseInt(part, 10, 64)
		if err != nil || more != (i < len(into)-1) {
			return Point{}, fmt.Errorf("%w: %.64q", ErrMalformed, text)
		}
		*n, rest = v, after
	}
	return p, nil
}

// Last returns the minutes that the last d before now touches, as [from, to): the
// current minute counts in full, as does the one in which d began.
func Last(now time.Time, d time.Duration) (from, to int64) {
	return now.Add(-d).Unix() / 60, now.Unix()/60 + 1
}
