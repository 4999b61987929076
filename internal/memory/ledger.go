package memory

import (
	"context"

	"github.com/tallygate/tallygate/internal/metadata"
	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/timeseries"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// Apply implements tracker.Ledger.
func (s *Store) Apply(_ context.Context, cells []usage.Key) ([]usage.Applied, error) {
	applied := make([]usage.Applied, 0, len(cells))
	for _, key := range cells {
		if a, ok := s.apply(key); ok {
			applied = append(applied, a)
		}
	}
	return applied, nil
}

func (s *Store) apply(key usage.Key) (usage.Applied, bool) {
	sh := s.shard(key.Token)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	a := sh.accounts[key.Token]
	if a == nil {
		return usage.Applied{}, false
	}
	c := a.Cell(key.Resource, key.Minute)
	if c == nil {
		return usage.Applied{}, false
	}
	done := usage.Applied{Record: record(key.Token, c)}
	done.Moved = c.Admitted - c.Noted.Admitted + c.Rejected - c.Noted.Rejected + c.Refunded - c.Noted.Refunded
	a.meta.Ops += c.Admitted - c.Noted.Admitted
	a.meta.Rejected += c.Rejected - c.Noted.Rejected
	a.meta.Refunded += c.Refunded - c.Noted.Refunded
	a.meta.Last = max(a.meta.Last, done.Last)
	if done.Last > 0 && (a.meta.First == 0 || done.Last < a.meta.First) {
		a.meta.First = done.Last
	}
	a.note(c)
	return done, true
}

// note marks what a cell holds as accounted for and puts it into its series.
func (a *account) note(c *quota.Cell) {
	c.Noted.Admitted, c.Noted.Rejected, c.Noted.Refunded = c.Admitted, c.Rejected, c.Refunded
	if a.series == nil {
		a.series = make(map[string]map[int64]timeseries.Point)
	}
	ring := a.series[c.Resource]
	if ring == nil {
		ring = make(map[int64]timeseries.Point)
		a.series[c.Resource] = ring
	}
	slot := c.Minute % timeseries.DefaultSpan
	if c.Minute >= ring[slot].Minute {
		ring[slot] = timeseries.Point{Minute: c.Minute, Admitted: c.Admitted, Rejected: c.Rejected, Refunded: c.Refunded}
	}
}

func record(id token.ID, c *quota.Cell) usage.Record {
	return usage.Record{
		Key:    usage.Key{Token: id, Resource: c.Resource, Minute: c.Minute},
		Totals: usage.Totals{Admitted: c.Admitted, Rejected: c.Rejected, Refunded: c.Refunded, Last: c.Last / 1000},
	}
}

// Scan implements tracker.Ledger.
func (s *Store) Scan(ctx context.Context, found func([]usage.Key)) error {
	for i := range s.shards {
		if err := ctx.Err(); err != nil {
			return err
		}
		if keys := s.shards[i].keys(); len(keys) > 0 {
			found(keys)
		}
	}
	return nil
}

func (sh *shard) keys() []usage.Key {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var keys []usage.Key
	for id, a := range sh.accounts {
		for c := range a.Cells {
			keys = append(keys, usage.Key{Token: id, Resource: c.Resource, Minute: c.Minute})
		}
	}
	return keys
}

// Restore sets the usage counters of a new store to what the history holds, as
// accounted for already, so that a process that starts again within a minute
// counts on where the last one stopped. Metadata is not restored.
func (s *Store) Restore(records []usage.Record) {
	for _, r := range records {
		s.restore(r)
	}
}

func (s *Store) restore(r usage.Record) {
	sh := s.shard(r.Token)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	a := sh.accounts[r.Token]
	if a == nil {
		a = new(account)
		sh.accounts[r.Token] = a
	}
	a.note(a.Restore(quota.Cell{
		Resource: r.Resource, Minute: r.Minute,
		Admitted: r.Admitted, Rejected: r.Rejected, Refunded: r.Refunded, Last: r.Last * 1000,
	}))
}

// Meta returns a token's metadata as last applied, and whether it has any.
func (s *Store) Meta(id token.ID) (metadata.Meta, bool) {
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	a := sh.accounts[id]
	if a == nil {
		return metadata.Meta{}, false
	}
	return a.meta, a.meta != metadata.Meta{}
}

// Points implements timeseries.Reader.
func (s *Store) Points(_ context.Context, id token.ID, resource string, from, to int64) ([]timeseries.Point, error) {
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	a := sh.accounts[id]
	if a == nil {
		return nil, nil
	}
	ring := a.series[resource]
	var points []timeseries.Point
	for minute := max(from, to-timeseries.DefaultSpan); minute < to; minute++ {
		if p, ok := ring[minute%timeseries.DefaultSpan]; ok && p.Minute == minute {
			points = append(points, p)
		}
	}
	return points, nil
}
