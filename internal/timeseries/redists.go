package timeseries

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/token"
)

// Backend keeps series in Redis: as a Ring, which any server can, or as RedisTS.
type Backend interface {
	Reader
	// Script is Lua that defines series_put.
	Script() string
	fmt.Stringer
}

var (
	_ Backend = (*Ring)(nil)
	_ Backend = (*RedisTS)(nil)
)

// Choose returns RedisTS when the server has RedisTimeSeries, else Ring; also when
// it will not say. What one has kept the other does not read: with a server that
// gets the module series begin anew.
func Choose(ctx context.Context, client redis.UniversalClient, namespace string) (Backend, error) {
	info, err := client.Do(ctx, "COMMAND", "INFO", "TS.ADD").Slice()
	var said redis.Error
	switch {
	case errors.As(err, &said):
		return NewRing(client, namespace), nil
	case err != nil:
		return nil, fmt.Errorf("ask the server for RedisTimeSeries: %w", err)
	case len(info) == 1 && info[0] != nil:
		return NewRedisTS(client, namespace), nil
	}
	return NewRing(client, namespace), nil
}

//go:embed redists.lua
var redisTSLua string

// RedisTS keeps series in RedisTimeSeries: for each token and resource, units per
// minute and, made from those by compaction rules, per hour and per day. They carry
// the labels token, resource (unless it is the default one), kind (admitted,
// rejected or refunded) and step (minute, hour or day), so that the server's own
// clients can ask across tokens:
//
//	TS.MRANGE - + FILTER resource=search kind=admitted step=hour
//
// It is safe for concurrent use.
type RedisTS struct {
	client    redis.UniversalClient
	namespace string
}

// NewRedisTS returns the series of a namespace.
func NewRedisTS(client redis.UniversalClient, namespace string) *RedisTS {
	return &RedisTS{client, namespace}
}

// Script implements Backend. Beside the key that it is given, series_put touches
// further keys of its slot, see redists.lua.
func (s *RedisTS) Script() string { return redisTSLua }

// String says what it is, for logs.
func (s *RedisTS) String() string { return "RedisTimeSeries" }

// String says what it is, for logs.
func (r *Ring) String() string { return "hashes" }

// Script implements Backend.
func (r *Ring) Script() string { return Lua }

// Every is how much time one sample stands for.
type Every string

// What series are compacted to.
const (
	Hour Every = ":hour"
	Day  Every = ":day" // of UTC
)

const minuteMs = 60_000

// Points implements Reader.
func (s *RedisTS) Points(ctx context.Context, id token.ID, resource string, from, to int64) ([]Point, error) {
	return s.read(ctx, id, resource, "", from, to)
}

// Compacted is Points for hours or days: one point for each of those that begin in
// [from, to), epoch minutes, and have usage. The running one is included.
func (s *RedisTS) Compacted(ctx context.Context, every Every, id token.ID, resource string, from, to int64) ([]Point, error) {
	return s.read(ctx, id, resource, string(every), from, to)
}

func (s *RedisTS) read(ctx context.Context, id token.ID, resource, suffix string, from, to int64) ([]Point, error) {
	if to <= from {
		return nil, nil
	}
	kinds := []struct {
		name string
		of   func(*Point) *int64
	}{
		{"admitted", func(p *Point) *int64 { return &p.Admitted }},
		{"rejected", func(p *Point) *int64 { return &p.Rejected }},
		{"refunded", func(p *Point) *int64 { return &p.Refunded }},
	}
	replies := make([]*redis.TSTimestampValueSliceCmd, len(kinds))
	// Errors are looked at one by one: a series that nothing was ever written to is one.
	_, _ = s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, kind := range kinds {
			key := Key(s.namespace, id, resource) + ":" + kind.name + suffix
			replies[i] = pipe.TSRangeWithArgs(ctx, key, int(max(from, 0)*minuteMs), int(to*minuteMs-1), &redis.TSRangeOptions{Latest: suffix != ""})
		}
		return nil
	})
	byMinute := make(map[int64]Point)
	for i, kind := range kinds {
		samples, err := replies[i].Result()
		if err != nil {
			var said redis.Error
			if errors.As(err, &said) && strings.Contains(said.Error(), "the key does not exist") {
				continue
			}
			return nil, fmt.Errorf("read the series of %s units: %w", kind.name, err)
		}
		for _, sample := range samples {
			minute := sample.Timestamp / minuteMs
			p := byMinute[minute]
			p.Minute = minute
			*kind.of(&p) = int64(sample.Value)
			byMinute[minute] = p
		}
	}
	points := make([]Point, 0, len(byMinute))
	for _, p := range byMinute {
		points = append(points, p)
	}
	sortPoints(points)
	return points, nil
}
