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

//go:embed state.lua
var stateSource string

//go:embed decide.lua
var decideSource string

var decideScript = newScript(decideSource)

// script is a Lua script and its digest.
type script struct{ source, digest string }

func newScript(body string) *script {
	source := stateSource + body
	return &script{source, redis.NewScript(source).Hash()}
}

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
	if err := s.client.ScriptLoad(ctx, decideScript.source).Err(); err != nil {
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
	reply, err := s.run(ctx, decideScript, c.command)
	if err != nil {
		c.fail(0, len(c.batch.Entries), err)
		return
	}
	c.decode(0, len(c.batch.Entries), now, reply)
}

// run runs a script with what a call has encoded: command makes its commands.
func (s *Store) run(ctx context.Context, script *script, command func(ctx context.Context, name, text string) *onceCmd) ([]int64, error) {
	cmd := command(ctx, "evalsha", script.digest)
	err := s.client.Process(ctx, cmd)
	for try := 0; again(ctx, err, try); try++ {
		name, text := script.call(err)
		cmd = command(ctx, name, text)
		err = s.client.Process(ctx, cmd)
	}
	return cmd.Val(), err
}

// call returns how to call the script after err: by its source where the server
// does not know it, after a restart or SCRIPT FLUSH, else by its digest.
func (s *script) call(err error) (name, text string) {
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		return "eval", s.source
	}
	return "evalsha", s.digest
}

// tries bounds how often a call is made again that the server has not run.
const tries = 6

// again reports whether a call that failed was not run and is worth another try,
// and waits before the later ones: a slot that moves, a replica that becomes a
// master need some milliseconds. Whatever may have run is never tried again.
func again(ctx context.Context, err error, try int) bool {
	if err == nil || try >= tries {
		return false
	}
	if redis.HasErrorPrefix(err, "NOSCRIPT") && try == 0 {
		return true // it needs no time, only the source
	}
	return notRun(err) && pause(ctx, time.Millisecond<<try)
}

// notRun reports whether err is a server's answer that it did not run a script, and
// may later.
func notRun(err error) bool {
	for _, prefix := range []string{"NOSCRIPT", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "READONLY", "MASTERDOWN"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

// pause waits, and reports false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// perToken decides the batch in one pipeline per node, of one script call per
// entry: each touches the slot of its token only.
func (s *Store) perToken(ctx context.Context, c *call, now int64) {
	entries := c.batch.Entries
	cmds := make([]*onceCmd, len(entries))
	pipe := s.client.Pipeline()
	for i := range entries {
		c.encode(s, i, i+1, now)
		cmds[i] = c.ownedCommand(ctx, "evalsha", decideScript.digest)
		_ = pipe.Process(ctx, cmds[i])
	}
	_, _ = pipe.Exec(ctx) // each command holds its own error
	for try := 0; again(ctx, firstNotRun(cmds), try); try++ {
		pipe = s.client.Pipeline()
		for i, cmd := range cmds {
			if notRun(cmd.Err()) {
				c.encode(s, i, i+1, now)
				name, text := decideScript.call(cmd.Err())
				cmds[i] = c.ownedCommand(ctx, name, text)
				_ = pipe.Process(ctx, cmds[i])
			}
		}
		_, _ = pipe.Exec(ctx)
	}
	for i, cmd := range cmds {
		if err := cmd.Err(); err != nil {
			c.fail(i, i+1, err)
			continue
		}
		c.decode(i, i+1, now, cmd.Val())
	}
}

func firstNotRun(cmds []*onceCmd) error {
	for _, cmd := range cmds {
		if err := cmd.Err(); notRun(err) {
			return err
		}
	}
	return nil
}
