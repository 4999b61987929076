package memory

import (
	"context"
	"errors"

	"github.com/tallygate/tallygate/internal/usage"
)

// ErrWatched is returned by Watch while another Watch runs.
var ErrWatched = errors.New("the in-process store is being watched already")

// Watch implements tracker.Feed: it never loses a change, so resync is called
// once. A changed cell is told once, however often it changed since it was last
// told: what waits is bounded by the cells, and a decision never waits for it.
func (s *Store) Watch(ctx context.Context, changed func(usage.Key), resync func()) error {
	if !s.watched.CompareAndSwap(false, true) {
		return ErrWatched
	}
	defer s.watched.Store(false)
	resync()
	for {
		select {
		case <-ctx.Done():
			s.tellChanged(changed) // of every decision that was answered before
			return nil
		case <-s.changes:
			s.tellChanged(changed)
		}
	}
}

func (s *Store) tellChanged(changed func(usage.Key)) {
	for i := range s.shards {
		for _, d := range s.shards[i].takeDirty() {
			changed(usage.Key{Token: d.id, Resource: d.cell.Resource, Minute: d.cell.Minute})
		}
	}
}

func (sh *shard) takeDirty() []dirtyCell {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	dirty := sh.dirty
	sh.dirty = nil
	for _, d := range dirty {
		d.cell.Dirty = false
	}
	return dirty
}
