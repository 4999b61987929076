package counters

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/quota"
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
	args    []any
}

// onceCmd is a command that go-redis must not send twice: a script that counts
// may have run although its answer was lost.
type onceCmd struct{ *redis.IntSliceCmd }

func (onceCmd) NoRetry() bool { return true }

// encode prepares KEYS and ARGV of the entries from to below to.
func (c *call) encode(s *Store, from, to int, now int64) {
	minute := quota.Minute(now)
	expireAt := (minute+1)*60_000 + s.grace
	c.numbers.reset()
	c.text, c.ends = c.text[:0], c.ends[:0]
	c.numbers.add(expireAt)
	c.numbers.add(int64(to - from))
	for i := from; i < to; i++ {
		e := &c.batch.Entries[i]
		c.text = s.ns.appendUsage(c.text, e.Token, e.Resource, minute)
		c.ends = append(c.ends, len(c.text))
		c.text = s.ns.appendBeside(c.text, e.Token, e.Resource, minute, "rejected")
		c.ends = append(c.ends, len(c.text))
		c.numbers.add(e.Cost)
		c.numbers.add(e.Count)
		if e.Blocked {
			c.numbers.add(-1)
			continue
		}
		c.numbers.add(int64(len(e.Limits)))
		for j := range e.Limits {
			l := &e.Limits[j]
			c.numbers.add(l.Quota)
			if l.IsUsageCounter() {
				c.numbers.add(0)
				continue
			}
			c.numbers.add(l.WindowEnd(now) + skew.Milliseconds())
			c.text = s.ns.appendLimit(c.text, e.Token, l.Name, l.WindowStart(now))
			c.ends = append(c.ends, len(c.text))
		}
	}
	text, start := string(c.text), 0
	c.keys = c.keys[:0]
	for _, end := range c.ends {
		c.keys = append(c.keys, text[start:end])
		start = end
	}
	c.params = string(c.numbers.bytes())
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
	return &onceCmd{redis.NewIntSliceCmd(ctx, c.args...)}
}

// ownedCommand is command with arguments of its own, as a pipeline of several
// needs and as the cluster client can route.
func (c *call) ownedCommand(ctx context.Context, name, script string) *onceCmd {
	args := make([]any, 0, len(c.keys)+4)
	args = append(args, name, script, len(c.keys))
	for _, key := range c.keys {
		args = append(args, key)
	}
	return &onceCmd{redis.NewIntSliceCmd(ctx, append(args, c.params)...)}
}

// decode reads the script's answer about the entries from to below to.
func (c *call) decode(from, to int, now int64, reply []int64) {
	for i := from; i < to; i++ {
		e := &c.batch.Entries[i]
		need := 1
		if !e.Blocked {
			need += len(e.Limits)
		}
		if len(reply) < need {
			c.fail(i, to, fmt.Errorf("the script's answer is short by %d numbers", need-len(reply)))
			return
		}
		a := &c.answers[i]
		a.Fit = reply[0]
		switch {
		case e.Blocked:
			a.No = quota.Block(now)
		default:
			if a.Fit > 0 {
				a.Yes = quota.Allow(now, statuses(e, reply[1:need], now, 0))
			}
			if a.Fit < e.Count {
				a.No = quota.Refuse(now, statuses(e, reply[1:need], now, e.Cost))
			}
		}
		reply = reply[need:]
	}
}

func statuses(e *quota.Entry, used []int64, now, refused int64) []quota.Status {
	if len(used) == 0 {
		return nil
	}
	out := make([]quota.Status, len(used))
	for i := range used {
		out[i] = e.Limits[i].CountStatus(used[i], now, refused)
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
