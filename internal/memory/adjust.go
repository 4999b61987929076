package memory

import (
	"context"

	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// Adjust makes an adjustment. The error is quota.ErrTooLate when what it is about
// is gone.
func (s *Store) Adjust(_ context.Context, j quota.Adjustment) error {
	if err := j.Check(); err != nil {
		return err
	}
	return s.change(j.Token, func(a *account, now int64) (*quota.Cell, error) {
		if j.At == 0 || j.Kind == quota.Grant || j.Kind == quota.Reset {
			j.At = now
		}
		return a.Adjust(&j, now)
	})
}

// Settle replaces a reservation's estimate by the actual cost. Settling again
// changes nothing. The error is quota.ErrNoReservation when there is none.
func (s *Store) Settle(_ context.Context, t quota.Settlement) error {
	if t.Actual < 0 || t.Actual > quota.MaxCost {
		return quota.ErrUnits
	}
	return s.change(t.Token, func(a *account, now int64) (*quota.Cell, error) { return a.Settle(&t, now) })
}

// Release gives back what was taken under a lease from limits of concurrency.
func (s *Store) Release(_ context.Context, id token.ID, lease string, limits []quota.Limit) error {
	return s.change(id, func(a *account, _ int64) (*quota.Cell, error) {
		a.Release(lease, limits)
		return nil, nil
	})
}

// change changes the account of a token, which may be a new one, and marks the
// cell that changed.
func (s *Store) change(id token.ID, change func(a *account, now int64) (*quota.Cell, error)) error {
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	a := sh.accounts[id]
	if a == nil {
		a = new(account)
		sh.accounts[id] = a
	}
	cell, err := change(a, s.now())
	s.changed(sh, id, cell)
	return err
}
