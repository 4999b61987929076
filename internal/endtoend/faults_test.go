package endtoend

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/load"
	"github.com/tallygate/tallygate/internal/pgtest"
)

// One process dies or stalls in mid-load; enforcement goes on, and when all is
// quiet the account is exact.
func TestAccountIsExact(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault func(p *pipeline, r *running)
	}{
		{"without faults", func(p *pipeline, r *running) {
			r.until(6000)
		}},
		{"tracker killed and restarted", func(p *pipeline, r *running) {
			for range 2 {
				r.until(1500)
				p.tracker.kill()
				r.until(1500)
				p.tracker.start()
			}
			r.until(1000)
		}},
		{"tracker suspended", func(p *pipeline, r *running) {
			r.until(1500)
			p.tracker.proc.Signal(syscall.SIGSTOP)
			r.until(3000)
			p.tracker.proc.Signal(syscall.SIGCONT)
			r.until(1000)
		}},
		{"tracker away when the load ends", func(p *pipeline, r *running) {
			r.until(2000)
			p.tracker.kill()
			r.until(2000)
			r.finish()
			p.tracker.start()
		}},
		{"indexer killed and restarted", func(p *pipeline, r *running) {
			for range 2 {
				r.until(1500)
				p.indexer.kill()
				r.until(1500)
				p.indexer.start()
			}
			r.until(1000)
		}},
		{"tracker and indexer killed together", func(p *pipeline, r *running) {
			r.until(2000)
			p.tracker.kill()
			p.indexer.kill()
			r.until(2000)
			p.indexer.start()
			p.tracker.start()
			r.until(1000)
		}},
		{"notifications and scripts gone after CONFIG SET and SCRIPT FLUSH", func(p *pipeline, r *running) {
			r.until(1500)
			p.do("CONFIG", "SET", "notify-keyspace-events", "")
			p.do("SCRIPT", "FLUSH")
			r.until(1500)
			p.tracker.kill()
			p.tracker.start()
			r.until(1000)
		}},
		{"subscription cut", func(p *pipeline, r *running) {
			r.until(1500)
			p.do("CLIENT", "KILL", "TYPE", "pubsub")
			r.until(1500)
			p.do("CLIENT", "KILL", "TYPE", "pubsub")
			r.until(1000)
		}},
		{"two trackers at once", func(p *pipeline, r *running) {
			second := p.service("tracker")
			second.start()
			r.until(2000)
			p.tracker.kill()
			r.until(2000)
			p.tracker.start()
			r.until(1000)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := startPipeline(t, setup{})
			enforced, classic := p.enforcedLoad(), p.classicLoad()
			c.fault(p, enforced)
			report, foreign := enforced.finish(), classic.finish()
			checkCertain(t, report)
			enforced.seen.checkQuotas(t)
			withoutRejections(foreign)
			p.checkAccounts(report, foreign)

			// A fresh tracker scans everything again: nothing may be counted twice.
			p.tracker.kill()
			p.tracker.start()
			eventually(t, 20*time.Second, func(context.Context) error {
				if p.tracker.metric("tallygate_tracker_rescans_total") == 0 {
					return fmt.Errorf("the tracker has not scanned yet")
				}
				return nil
			})
			p.checkAccounts(report, foreign)
		})
	}
}

// withoutRejections removes what the classic recipe tells nobody.
func withoutRejections(r *load.Report) {
	for i := range r.Tokens {
		r.Tokens[i].Rejected = 0
	}
	for i := range r.Cells {
		r.Cells[i].Rejected = 0
	}
}

// do sends a command to Redis.
func (p *pipeline) do(args ...any) {
	p.t.Helper()
	if err := p.client.Do(p.t.Context(), args...).Err(); err != nil && err != redis.Nil {
		p.t.Fatalf("%v: %v", args, err)
	}
}

// What the stream has handed to an indexer that died before it confirmed is
// handed out again, whoever held it.
func TestAccountIsExactWithStreamEntriesPending(t *testing.T) {
	p := startPipeline(t, setup{})
	r := p.enforcedLoad()
	r.until(1500)
	p.indexer.kill()
	r.until(1500)
	eventually(t, 10*time.Second, func(ctx context.Context) error {
		// A consumer that takes all there is, and then is never heard of again.
		got, err := p.client.XReadGroup(ctx, &redis.XReadGroupArgs{
			Group: "indexer", Consumer: "dead", Streams: []string{"tallygate:usage", ">"}, Count: 1000, Block: -1,
		}).Result()
		if err != nil {
			return fmt.Errorf("nothing to take yet: %w", err)
		}
		t.Logf("%d entries are pending with a dead consumer", len(got[0].Messages))
		return nil
	})
	report := r.finish()
	p.indexer.start()
	checkCertain(t, report)
	p.checkAccounts(report)
}

func TestAccountIsExactAfterTheHistoryWasAway(t *testing.T) {
	postgres := pgtest.Start(t)
	p := startPipeline(t, setup{history: postgres.Database(t)})
	r := p.enforcedLoad()
	r.until(1500)
	postgres.Kill()
	r.until(2000)
	postgres.Restart()
	r.until(1000)
	report := r.finish()
	checkCertain(t, report)
	p.checkAccounts(report)
}

// On a cluster every master tells of its own counters, and slots move while they
// are counted in.
func TestAccountIsExactOnACluster(t *testing.T) {
	p := startPipeline(t, setup{cluster: true})
	enforced, classic := p.enforcedLoad(), p.classicLoad()
	enforced.until(1500)
	for i, from := range p.cluster.Nodes {
		for _, slot := range p.cluster.OwnedSlots(from, 10) {
			p.cluster.MoveSlot(slot, from, p.cluster.Nodes[(i+1)%len(p.cluster.Nodes)])
		}
	}
	enforced.until(1500)
	p.tracker.kill()
	enforced.until(1500)
	p.tracker.start()
	enforced.until(1000)
	report, foreign := enforced.finish(), classic.finish()
	// A key that is between two masters cannot be asked for a moment.
	if r := report.Requests; r.Failed > 0 || r.Unknown*100 > r.Admitted || r.Rejected == 0 {
		t.Errorf("requests %+v: %v", r, report.Errors)
	}
	enforced.seen.checkQuotas(t)
	withoutRejections(foreign)
	p.checkBounds(report, foreign)
}

// When answers get lost nobody knows whether they were counted. No request may be
// counted twice for that, no quota be exceeded, and both accounts stay equal.
func TestLostAnswersAreCountedAtMostOnce(t *testing.T) {
	for _, c := range []struct {
		name  string
		redis func(t *testing.T) []string
		fault func(p *pipeline, r *running)
	}{
		{"an enforcer killed and restarted", nil, func(p *pipeline, r *running) {
			for range 2 {
				p.enforcers[0].kill()
				r.until(500)
				p.enforcers[0].start()
				r.until(500)
			}
		}},
		{"the enforcers' connections to Redis cut", nil, func(p *pipeline, r *running) {
			for range 10 {
				p.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
				r.until(200)
			}
		}},
		{"Redis suspended for longer than a decision may take", nil, func(p *pipeline, r *running) {
			p.redis.Pause()
			r.until(40)
			p.redis.Resume()
			r.until(1000)
		}},
		{"Redis killed and restarted with its append-only file", func(t *testing.T) []string {
			return []string{"--appendonly", "yes", "--appendfsync", "always", "--dir", t.TempDir()}
		}, func(p *pipeline, r *running) {
			p.redis.Restart()
			r.until(1000)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s setup
			if c.redis != nil {
				s.redis = c.redis(t)
			}
			p := startPipeline(t, s)
			r := p.enforcedLoad()
			r.until(1500)
			c.fault(p, r)
			r.until(1000)
			report := r.finish()
			r.seen.checkQuotas(t)
			p.checkBounds(report)
		})
	}
}
