package counters

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// call is one batch on its way to Redis and back, with its buffers; calls are
// used again. See decide.lua for what travels.
type call struct {
	batch   quota.Batch
	answers []quota.EntryAnswer

	numbers packer
	text    []byte   // all keys, one after the other
	ends    []int    // where each key ends in text
	keys    []string // substrings of one copy of text
	params  string   // numbers, packed
	leases  []string // further arguments: names of leases
	args    []any
}

// onceCmd is a command that go-redis must not send twice: a script that counts
// may have run although its answer was lost.
type onceCmd struct{ *redis.IntSliceCmd }

func (onceCmd) NoRetry() bool { return true }

// encode prepares KEYS and ARGV of the entries from to below to.
func (c *call) encode(s *Store, from, to int, now int64) {
	minute := quota.Minute(now)
	c.begin()
	c.numbers.add(now)
	c.numbers.add((minute+1)*60_000 + s.grace)
	c.numbers.add(skew.Milliseconds())
	c.numbers.add(int64(to - from))
	c.key(s.ns.appendAdjusted(c.text, s.adjustedFor(c.batch.Entries[from].Token)))
	for i := from; i < to; i++ {
		e := &c.batch.Entries[i]
		c.key(s.ns.appendUsage(c.text, e.Token, e.Resource, minute))
		c.key(s.ns.appendBeside(c.text, e.Token, e.Resource, minute, "rejected"))
		c.numbers.add(e.Cost)
		c.numbers.add(e.Count)
		limits, reserve := e.Limits, int64(0)
		switch {
		case e.Blocked:
			limits = nil
			c.numbers.add(flagBlocked)
		case e.Overdraft:
			c.numbers.add(flagOverdraft)
		default:
			c.numbers.add(0)
		}
		if e.Reserve != "" && !e.Blocked {
			reserve = now + min(s.grace, e.ReserveFor.Milliseconds())
		}
		c.numbers.add(reserve)
		c.numbers.add(int64(len(limits)))
		for j := range limits {
			c.limit(s.ns, e.Token, e.Resource, e.Lease, &limits[j], now)
		}
		if reserve > 0 {
			c.key(s.ns.appendNamed(c.text, "reserve:", e.Token, e.Reserve))
		}
	}
	c.finish()
}

// begin empties the buffers, finish makes KEYS and ARGV of them.
func (c *call) begin() {
	c.numbers.reset()
	c.text, c.ends, c.leases = c.text[:0], c.ends[:0], c.leases[:0]
}

func (c *call) finish() {
	text, start := string(c.text), 0
	c.keys = c.keys[:0]
	for _, end := range c.ends {
		c.keys = append(c.keys, text[start:end])
		start = end
	}
	c.params = string(c.numbers.bytes())
}

// The numbers of decide.lua.
const (
	flagBlocked   = 1
	flagOverdraft = 2

	kindUsage   = 0
	kindCounter = 1
	kindFirst   = 2
	kindSliding = 3
	kindLog     = 4
	kindBucket  = 5
	kindLeases  = 6
	shadow      = 8
)

// limit encodes one limit: its key as of now and its parameters.
func (c *call) limit(ns Namespace, id token.ID, resource, lease string, l *quota.Limit, now int64) {
	mark := int64(0)
	if l.Shadow {
		mark = shadow
	}
	switch {
	case l.IsUsageCounter():
		c.key(ns.appendAdjustment(c.text, id, resource, quota.Minute(now)))
		c.numbers.add(kindUsage)
		c.numbers.add(l.Quota)
		return
	case l.IsCounter():
		start, end := l.WindowAt(now)
		c.key(ns.appendLimit(c.text, id, l.Name, start))
		c.numbers.add(kindCounter + mark)
		c.numbers.add(l.Quota)
		c.numbers.add(end + skew.Milliseconds())
		return
	}
	c.key(ns.appendLimit(c.text, id, l.Name, -1))
	switch l.Algorithm {
	case quota.SlidingWindow:
		c.numbers.add(kindSliding + mark)
		c.numbers.add(l.Quota)
		c.numbers.add(l.Precision.Milliseconds())
		c.numbers.add(int64(l.Window / l.Precision))
	case quota.SlidingLog:
		c.numbers.add(kindLog + mark)
		c.numbers.add(l.Quota)
		c.numbers.add(l.Window.Milliseconds())
		c.numbers.add(l.MinInterval.Milliseconds())
		if l.CountRejected {
			c.numbers.add(1)
		} else {
			c.numbers.add(0)
		}
	case quota.TokenBucket:
		unit, rate := l.Bucket()
		c.numbers.add(kindBucket + mark)
		c.numbers.add(l.Capacity())
		c.numbers.add(unit)
		c.numbers.add(rate)
	case quota.Concurrency:
		c.leases = append(c.leases, lease)
		c.numbers.add(kindLeases + mark)
		c.numbers.add(l.Quota)
		c.numbers.add(l.Window.Milliseconds())
		c.numbers.add(int64(1 + len(c.leases)))
	default: // FixedWindow from the first request
		c.numbers.add(kindFirst + mark)
		c.numbers.add(l.Quota)
		c.numbers.add(l.Window.Milliseconds())
	}
}

// key ends the key that was appended to text.
func (c *call) key(text []byte) {
	c.text = text
	c.ends = append(c.ends, len(text))
}

// command returns the script call that encode prepared. Its arguments are
// pointers into c, which spares an allocation for each: it is valid until the
// next encode.
func (c *call) command(ctx context.Context, name, script string) *onceCmd {
	c.args = append(c.args[:0], name, script, len(c.keys))
	for i := range c.keys {
		c.args = append(c.args, &c.keys[i])
	}
	c.args = append(c.args, &c.params)
	for i := range c.leases {
		c.args = append(c.args, &c.leases[i])
	}
	return &onceCmd{redis.NewIntSliceCmd(ctx, c.args...)}
}

// ownedCommand is command with arguments of its own, as a pipeline of several
// needs and as the cluster client can route.
func (c *call) ownedCommand(ctx context.Context, name, script string) *onceCmd {
	args := make([]any, 0, len(c.keys)+len(c.leases)+4)
	args = append(args, name, script, len(c.keys))
	for _, key := range c.keys {
		args = append(args, key)
	}
	args = append(args, c.params)
	for _, lease := range c.leases {
		args = append(args, lease)
	}
	return &onceCmd{redis.NewIntSliceCmd(ctx, args...)}
}

// decode reads the script's answer about the entries from to below to.
func (c *call) decode(from, to int, now int64, reply []int64) {
	for i := from; i < to; i++ {
		e := &c.batch.Entries[i]
		need := 2
		if !e.Blocked {
			for j := range e.Limits {
				need += answered(&e.Limits[j])
			}
		}
		if len(reply) < need {
			c.fail(i, to, fmt.Errorf("the script's answer is short by %d numbers", need-len(reply)))
			return
		}
		levels := reply[2:need]
		a := quota.EntryAnswer{Fit: reply[0], Clear: reply[1]}
		switch {
		case e.Blocked:
			a.No = quota.Block(now)
		default:
			if a.Clear > 0 {
				a.Yes = quota.Allow(now, statuses(e, levels, now, -1))
			}
			if a.Clear < a.Fit {
				a.Over = quota.Allow(now, statuses(e, levels, now, e.Cost))
			}
			if a.Fit < e.Count {
				a.No = quota.Refuse(now, e.Limits, statuses(e, levels, now, e.Cost))
			}
		}
		c.answers[i] = a
		reply = reply[need:]
	}
}

// answered is how many numbers the script returns for a limit.
func answered(l *quota.Limit) int {
	if l.IsCounter() {
		return 1
	}
	return 3
}

// statuses reads one status per limit; refused is the cost of a request that was
// refused, -1 when it was not.
func statuses(e *quota.Entry, levels []int64, now, refused int64) []quota.Status {
	if len(e.Limits) == 0 {
		return nil
	}
	out := make([]quota.Status, len(e.Limits))
	for i := range out {
		l := &e.Limits[i]
		if l.IsCounter() {
			out[i] = l.CountStatus(levels[0], now, refused)
			levels = levels[1:]
			continue
		}
		out[i] = quota.Status{Remaining: levels[0], Reset: time.Duration(levels[1]) * time.Millisecond}
		switch retry := levels[2]; {
		case refused < 0:
		case retry < 0:
			out[i].RetryAfter = quota.Never
		default:
			out[i].RetryAfter = time.Duration(retry) * time.Millisecond
		}
		levels = levels[3:]
	}
	return out
}

// fail gives the entries from to below to no decision.
func (c *call) fail(from, to int, err error) {
	err = unavailable(len(c.answers), err)
	for i := from; i < to; i++ {
		c.answers[i] = quota.EntryAnswer{Err: err}
	}
}

// packer writes a msgpack array of integers.
type packer struct {
	b []byte
	n uint32
}

// header is the room for an array's header: array 32, then the length.
const header = 5

func (p *packer) reset() { p.b, p.n = append(p.b[:0], make([]byte, header)...), 0 }

func (p *packer) add(v int64) {
	p.n++
	switch {
	case -32 <= v && v < 128: // fixint
		p.b = append(p.b, byte(v))
	default: // int 64
		p.b = binary.BigEndian.AppendUint64(append(p.b, 0xd3), uint64(v))
	}
}

func (p *packer) bytes() []byte {
	p.b[0] = 0xdd // array 32
	binary.BigEndian.PutUint32(p.b[1:], p.n)
	return p.b
}
