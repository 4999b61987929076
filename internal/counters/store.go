// Package counters decides requests on Redis and counts what they use.
//
//	key      one function per key; the shape of a key tells what it is
//	entry    equal requests of one batch, decided as one with a count
//	batch    what one round trip decides
//	group    the front that makes batches of concurrent single requests
//
// A worked example: 256 callers ask for one token with 100 units left in its
// minute. The first one leads and is sent alone; 128 of the others become one
// entry with count 128, of which the script admits 99.
package counters

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

//go:embed decide.lua
var decideSource string

var decideScript = redis.NewScript(decideSource)

// DefaultGrace is how long a usage counter outlives its minute unless configured
// otherwise: that is how long the tracker may be away without a loss.
const DefaultGrace = 10 * time.Minute

// skew is how long the key of a window outlives the window, so that enforcers
// whose clocks differ by less see the same count.
const skew = 5 * time.Second

// Options of a Store. The zero value is valid.
type Options struct {
	// Namespace overrides the default "api".
	Namespace Namespace
	// Grace overrides the default DefaultGrace. Longer costs memory: a key per
	// active (token, resource) and minute.
	Grace time.Duration
	// Clock overrides the default, Redis's own.
	Clock Clock
}

// Store decides requests on Redis: standalone, behind Sentinel, or Cluster. It is
// safe for concurrent use. Most callers want a Group in front of it.
type Store struct {
	client  redis.UniversalClient
	ns      Namespace
	grace   int64 // ms
	clock   Clock
	cluster bool
	calls   sync.Pool // of *call
}

// NewStore returns a store on client, which stays the caller's to close. It does
// no I/O; see Check.
func NewStore(client redis.UniversalClient, o Options) *Store {
	_, cluster := client.(*redis.ClusterClient)
	s := &Store{
		client:  client,
		ns:      cmp.Or(o.Namespace, DefaultNamespace),
		grace:   cmp.Or(o.Grace, DefaultGrace).Milliseconds(),
		clock:   o.Clock,
		cluster: cluster,
		calls:   sync.Pool{New: func() any { return new(call) }},
	}
	if s.clock == nil {
		s.clock = NewServerClock(client)
	}
	return s
}

// Check tells whether the store can decide now: that Redis answers and runs
// scripts. It loads the script as a side effect.
func (s *Store) Check(ctx context.Context) error {
	if _, err := s.clock.Now(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if err := decideScript.Load(ctx, s.client).Err(); err != nil {
		return fmt.Errorf("%w: load the decision script (the user needs EVALSHA, EVAL and SCRIPT LOAD): %w", ErrUnavailable, err)
	}
	return nil
}

// DecideAll decides requests in one round trip; results[i] answers requests[i].
// Equal requests are decided as one, see quota.Batch.
func (s *Store) DecideAll(ctx context.Context, requests []quota.Request) []quota.Result {
	results := make([]quota.Result, len(requests))
	if len(requests) == 0 {
		return results
	}
	c := s.calls.Get().(*call)
	c.batch.Group(requests)
	c.answers = append(c.answers[:0], make([]quota.EntryAnswer, len(c.batch.Entries))...)
	if now, err := s.clock.Now(ctx); err != nil {
		c.fail(0, len(c.answers), err)
	} else if s.cluster {
		s.perToken(ctx, c, now)
	} else {
		s.atOnce(ctx, c, now)
	}
	c.batch.Answer(results, c.answers)
	s.calls.Put(c)
	return results
}

// adjustedFor is the token whose mark of adjustments a call looks at.
func (s *Store) adjustedFor(id token.ID) token.ID {
	if s.cluster {
		return id
	}
	return ""
}

// atOnce decides the whole batch in one script call.
func (s *Store) atOnce(ctx context.Context, c *call, now int64) {
	c.encode(s, 0, len(c.batch.Entries), now)
	cmd := c.command(ctx, "evalsha", decideScript.Hash())
	err := s.client.Process(ctx, cmd)
	if redis.HasErrorPrefix(err, "NOSCRIPT") { // a restart or SCRIPT FLUSH: it did not run
		cmd = c.command(ctx, "eval", decideSource)
		err = s.client.Process(ctx, cmd)
	}
	if err != nil {
		c.fail(0, len(c.batch.Entries), err)
		return
	}
	c.decode(0, len(c.batch.Entries), now, cmd.Val())
}

// perToken decides the batch in one pipeline per node, of one script call per
// token's run of entries.
func (s *Store) perToken(ctx context.Context, c *call, now int64) {
	entries := c.batch.Entries
	cmds := make([]*onceCmd, 0, len(entries))
	send := func(which func(i int) bool, name, script string) {
		pipe := s.client.Pipeline()
		for i := range entries {
			if !which(i) {
				continue
			}
			c.encode(s, i, i+1, now)
			cmd := c.ownedCommand(ctx, name, script)
			if i < len(cmds) {
				cmds[i] = cmd
			} else {
				cmds = append(cmds, cmd)
			}
			_ = pipe.Process(ctx, cmd)
		}
		if pipe.Len() > 0 {
			_, _ = pipe.Exec(ctx) // each command holds its own error
		}
	}
	send(func(int) bool { return true }, "evalsha", decideScript.Hash())
	send(func(i int) bool { return redis.HasErrorPrefix(cmds[i].Err(), "NOSCRIPT") }, "eval", decideSource)
	for i, cmd := range cmds {
		if err := cmd.Err(); err != nil {
			c.fail(i, i+1, err)
			continue
		}
		c.decode(i, i+1, now, cmd.Val())
	}
}
