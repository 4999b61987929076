package tracker

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/metadata"
	"github.com/tallygate/tallygate/internal/timeseries"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

//go:embed apply.lua
var applyLua string

// RedisOptions of NewRedisLedger; the zero value of each field stands for its
// default.
type RedisOptions struct {
	// Namespace of the counters, overriding counters.DefaultNamespace.
	Namespace counters.Namespace
	// Grace is how long counters outlive their minute, overriding the default 10
	// minutes. It must not be shorter than the enforcers': a counter that is still
	// there after the tracker's grace is not accounted for any more.
	Grace time.Duration
	// SeriesSpan is how many minutes a series holds, overriding
	// timeseries.DefaultSpan.
	SeriesSpan int
	// Series is how series are kept, overriding the default of a timeseries.Ring.
	Series timeseries.Backend
	// ScanRate bounds how many keys a second a scan looks at, on each master,
	// overriding the default 100,000: about a twentieth of what a Redis core can.
	ScanRate int
	// Log gets the tokens whose keys hold something else than they should,
	// overriding slog.Default.
	Log *slog.Logger
}

func (o RedisOptions) withDefaults(client redis.UniversalClient) RedisOptions {
	if o.Namespace == "" {
		o.Namespace = counters.DefaultNamespace
	}
	if o.Grace <= 0 {
		o.Grace = 10 * time.Minute
	}
	if o.SeriesSpan <= 0 {
		o.SeriesSpan = timeseries.DefaultSpan
	}
	if o.Series == nil {
		o.Series = timeseries.NewRing(client, string(o.Namespace))
	}
	if o.ScanRate <= 0 {
		o.ScanRate = 100_000
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// RedisLedger is the Ledger beside the counters in Redis. It is safe for
// concurrent use, and several may work on the same tokens.
type RedisLedger struct {
	client redis.UniversalClient
	opts   RedisOptions
	script *redis.Script
	// tokensPerCall bounds the tokens of one script call: 1 on a Cluster, where
	// they live in different slots.
	tokensPerCall int
}

var _ Ledger = (*RedisLedger)(nil)

const (
	// maxTokensPerCall keeps one script call well below a millisecond.
	maxTokensPerCall = 32
	// maxCellsPerToken bounds the cells of one token in one call; Lua can pass on
	// some thousand arguments, and a cell takes up to five.
	maxCellsPerToken = 256
	// scanCount is the COUNT of a SCAN call, keys looked at.
	scanCount = 1000
)

// NewRedisLedger returns the ledger of a standalone server, a Sentinel's master
// or a Cluster.
func NewRedisLedger(client redis.UniversalClient, opts RedisOptions) *RedisLedger {
	opts = opts.withDefaults(client)
	l := &RedisLedger{
		client: client, opts: opts, tokensPerCall: maxTokensPerCall,
		script: redis.NewScript(metadata.Lua + opts.Series.Script() + applyLua),
	}
	if _, ok := client.(*redis.ClusterClient); ok {
		l.tokensPerCall = 1
	}
	return l
}

// AppliedKey is the key of what is accounted for of a token: hash, see apply.lua.
// It outlives every counter that it speaks of.
func AppliedKey(namespace counters.Namespace, id token.ID) string {
	return "applied:" + token.Tag(string(namespace), id)
}

// call is one call of the apply script.
type call struct {
	tokens [][]usage.Key // the cells of each token
	keys   []string
	args   []any
	reply  *redis.Cmd
}

// Apply implements Ledger: one script call for every maxTokensPerCall tokens, all
// in one pipeline. A call that failed, because its node is away or its slot on the
// way to another one, does not hold up the others.
func (l *RedisLedger) Apply(ctx context.Context, cells []usage.Key) ([]usage.Applied, error) {
	calls := l.calls(cells)
	err := l.run(ctx, calls)
	applied := make([]usage.Applied, 0, len(cells))
	for _, c := range calls {
		if c.reply.Err() != nil {
			continue
		}
		var rerr error
		if applied, rerr = l.read(c, applied); rerr != nil {
			return applied, rerr
		}
	}
	return applied, err
}

// calls groups cells by token and tokens into script calls.
func (l *RedisLedger) calls(cells []usage.Key) []*call {
	var order []token.ID
	byToken := make(map[token.ID][]usage.Key)
	seen := make(map[usage.Key]bool, len(cells))
	for _, cell := range cells {
		if seen[cell] {
			continue // within one call the script would account for it twice
		}
		seen[cell] = true
		if byToken[cell.Token] == nil {
			order = append(order, cell.Token)
		}
		byToken[cell.Token] = append(byToken[cell.Token], cell)
	}
	var calls []*call
	for _, id := range order {
		for rest := byToken[id]; len(rest) > 0; {
			n := min(len(rest), maxCellsPerToken)
			last := len(calls) - 1
			if last < 0 || len(calls[last].tokens) >= l.tokensPerCall {
				calls = append(calls, &call{args: []any{int64(l.opts.Grace / time.Second), l.opts.SeriesSpan}})
				last++
			}
			l.add(calls[last], id, rest[:n])
			rest = rest[n:]
		}
	}
	return calls
}

// add appends one token to c, in the order that apply.lua states.
func (l *RedisLedger) add(c *call, id token.ID, cells []usage.Key) {
	ns := l.opts.Namespace
	c.tokens = append(c.tokens, cells)
	c.keys = append(c.keys, AppliedKey(ns, id), metadata.Key(string(ns), id))
	c.args = append(c.args, len(cells))
	for _, cell := range cells {
		c.keys = append(
			c.keys,
			ns.Usage(id, cell.Resource, cell.Minute),
			ns.Rejected(id, cell.Resource, cell.Minute),
			ns.Refunded(id, cell.Resource, cell.Minute),
			timeseries.Key(string(ns), id, cell.Resource),
		)
		minute := strconv.FormatInt(cell.Minute, 10)
		if cell.Resource != "" {
			c.args = append(c.args, cell.Minute, minute+":"+cell.Resource, 0)
			continue
		}
		names := foreignNames(cell.Minute)
		c.args = append(c.args, cell.Minute, minute, len(names))
		for _, name := range names {
			c.keys = append(c.keys, token.Tag(string(ns), id)+":"+name)
			c.args = append(c.args, name+"@"+minute)
		}
	}
}

// foreignNames returns how applications write the minute of the hour: 7 and 07.
func foreignNames(minute int64) []string {
	m := strconv.FormatInt(minute%60, 10)
	if len(m) == 1 {
		return []string{m, "0" + m}
	}
	return []string{m}
}

// run makes the calls in one pipeline, and those that a server without the script
// refused once more after loading it there. It returns the error of one of the
// calls that failed in the end.
func (l *RedisLedger) run(ctx context.Context, calls []*call) error {
	l.send(ctx, calls)
	var again []*call
	for _, c := range calls {
		if redis.HasErrorPrefix(c.reply.Err(), "NOSCRIPT") {
			again = append(again, c)
		}
	}
	if len(again) > 0 {
		if err := l.load(ctx); err != nil {
			return err
		}
		l.send(ctx, again)
	}
	for _, c := range calls {
		if err := c.reply.Err(); err != nil {
			return fmt.Errorf("call the apply script: %w", err)
		}
	}
	return nil
}

// send makes calls in one pipeline and leaves each one's outcome in its reply.
func (l *RedisLedger) send(ctx context.Context, calls []*call) {
	_, _ = l.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, c := range calls {
			c.reply = l.script.EvalSha(ctx, pipe, c.keys, c.args...)
		}
		return nil
	})
}

// load puts the script on every master.
func (l *RedisLedger) load(ctx context.Context) error {
	var err error
	if cluster, ok := l.client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
			return l.script.Load(ctx, master).Err()
		})
	} else {
		err = l.script.Load(ctx, l.client).Err()
	}
	if err != nil {
		return fmt.Errorf("load the apply script: %w", err)
	}
	return nil
}

var errReply = errors.New("the apply script returned something unexpected")

// cellReply is how many integers the script returns for a cell.
const cellReply = 5

func (l *RedisLedger) read(c *call, applied []usage.Applied) ([]usage.Applied, error) {
	results, err := c.reply.Slice()
	if err != nil || len(results) != len(c.tokens) {
		return nil, fmt.Errorf("%w: %d results for %d tokens (%v)", errReply, len(results), len(c.tokens), err)
	}
	for i, cells := range c.tokens {
		if refused, ok := results[i].(string); ok {
			// Trying again would not help, and the other tokens must go on.
			l.opts.Log.Error("a token's keys in Redis hold something else than they should; its usage is not accounted for",
				"key", AppliedKey(l.opts.Namespace, cells[0].Token), "error", refused)
			continue
		}
		values, ok := results[i].([]any)
		if !ok || len(values) != cellReply*len(cells) {
			return nil, fmt.Errorf("%w: %T for %d cells", errReply, results[i], len(cells))
		}
		for j, cell := range cells {
			var n [cellReply]int64
			for k := range n {
				if n[k], ok = values[cellReply*j+k].(int64); !ok {
					return nil, fmt.Errorf("%w: %T in place of a figure", errReply, values[cellReply*j+k])
				}
			}
			if n[0] < 0 {
				continue
			}
			applied = append(applied, usage.Applied{
				Record: usage.Record{Key: cell, Totals: usage.Totals{Admitted: n[0], Rejected: n[1], Refunded: n[2], Last: n[3]}},
				Moved:  n[4],
			})
		}
	}
	return applied, nil
}

// Scan implements Ledger: it walks all keys of every master once.
func (l *RedisLedger) Scan(ctx context.Context, found func([]usage.Key)) error {
	if cluster, ok := l.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
			return l.scanNode(ctx, master, found)
		})
	}
	return l.scanNode(ctx, l.client, found)
}

func (l *RedisLedger) scanNode(ctx context.Context, node redis.Cmdable, found func([]usage.Key)) error {
	match := "{" + string(l.opts.Namespace) + ":*"
	pause := time.Duration(scanCount) * time.Second / time.Duration(l.opts.ScanRate)
	for cursor := uint64(0); ; {
		keys, next, err := node.ScanType(ctx, cursor, match, scanCount, "string").Result()
		if err != nil {
			return fmt.Errorf("scan the counters: %w", err)
		}
		if cells := l.cells(keys, time.Now()); len(cells) > 0 {
			found(cells)
		}
		if cursor = next; cursor == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("scan the counters: %w", ctx.Err())
		case <-time.After(pause):
		}
	}
}

// cells returns the cells of those keys that are counters, each once.
func (l *RedisLedger) cells(keys []string, now time.Time) []usage.Key {
	seen := make(map[usage.Key]bool, len(keys))
	cells := make([]usage.Key, 0, len(keys))
	for _, key := range keys {
		if cell, ok := cellOf(l.opts.Namespace, key, now); ok && !seen[cell] {
			seen[cell] = true
			cells = append(cells, cell)
		}
	}
	return cells
}

// cellOf returns the cell of a counter's key.
func cellOf(ns counters.Namespace, key string, now time.Time) (usage.Key, bool) {
	c := ns.ParseKey(key)
	switch c.Kind {
	case counters.Other:
		return usage.Key{}, false
	case counters.Foreign:
		c.Minute = counters.ForeignMinute(int(c.Minute), now.UnixMilli())
	}
	return usage.Key{Token: c.Token, Resource: c.Resource, Minute: c.Minute}, true
}
