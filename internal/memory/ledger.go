package memory

import (
	"context"

	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// Meta is a token's metadata.
type Meta struct {
	First, Last int64 // unix seconds of first and last use; 0 when never admitted
	Ops         int64 // admitted units, ever
	Rejected    int64 // units
	Refunded    int64 // units
}

// Apply implements tracker.Ledger.
func (s *Store) Apply(_ context.Context, cells []usage.Key) ([]usage.Applied, error) {
	applied := make([]usage.Applied, 0, len(cells))
	for _, key := range cells {
		if totals, moved, ok := s.apply(key); ok {
			applied = append(applied, usage.Applied{Record: usage.Record{Key: key, Totals: totals}, Moved: moved})
		}
	}
	return applied, nil
}

// apply also returns how many units it accounted for.
func (s *Store) apply(key usage.Key) (usage.Totals, int64, bool) {
	sh := s.shard(key.Token)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	a := sh.accounts[key.Token]
	if a == nil {
		return usage.Totals{}, 0, false
	}
	c := a.Cell(key.Resource, key.Minute)
	if c == nil {
		return usage.Totals{}, 0, false
	}
	moved := c.Admitted + c.Rejected + c.Refunded - c.Noted.Admitted - c.Noted.Rejected - c.Noted.Refunded
	a.meta.Ops += c.Admitted - c.Noted.Admitted
	a.meta.Rejected += c.Rejected - c.Noted.Rejected
	a.meta.Refunded += c.Refunded - c.Noted.Refunded
	c.Noted.Admitted, c.Noted.Rejected, c.Noted.Refunded = c.Admitted, c.Rejected, c.Refunded
	last := c.Last / 1000
	a.meta.Last = max(a.meta.Last, last)
	if last > 0 && (a.meta.First == 0 || last < a.meta.First) {
		a.meta.First = last
	}
	return usage.Totals{Admitted: c.Admitted, Rejected: c.Rejected, Refunded: c.Refunded, Last: last}, moved, true
}

// Restore takes over what an earlier store had counted and accounted for, so that
// minutes that are still in grace go on where they were: a store that began them
// anew would publish less than was published before.
func (s *Store) Restore(records []usage.Record) {
	for _, r := range records {
		sh := s.shard(r.Token)
		sh.mu.Lock()
		a := sh.accounts[r.Token]
		if a == nil {
			a = new(account)
			sh.accounts[r.Token] = a
		}
		cell := quota.Cell{
			Resource: r.Resource, Minute: r.Minute,
			Admitted: r.Admitted, Rejected: r.Rejected, Refunded: r.Refunded, Last: r.Last * 1000,
		}
		cell.Noted.Admitted, cell.Noted.Rejected, cell.Noted.Refunded = r.Admitted, r.Rejected, r.Refunded
		a.Restore(cell)
		sh.mu.Unlock()
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
		a.Cells(func(c *quota.Cell) bool {
			keys = append(keys, usage.Key{Token: id, Resource: c.Resource, Minute: c.Minute})
			return true
		})
	}
	return keys
}

// Meta returns a token's metadata as last applied, and whether it has any.
func (s *Store) Meta(id token.ID) (Meta, bool) {
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	a := sh.accounts[id]
	if a == nil {
		return Meta{}, false
	}
	return a.meta, a.meta != Meta{}
}
