package conf

import (
	"context"
	"fmt"
	"sync"

	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// Memory is the Store of services that live in one process. Its events go to the
// bus at once.
type Memory struct {
	bus usage.Publisher

	mu       sync.Mutex
	confs    map[token.ID]Conf
	watchers map[*func(token.ID)]struct{}
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty store.
func NewMemory(bus usage.Publisher) *Memory {
	return &Memory{bus: bus, confs: map[token.ID]Conf{}, watchers: map[*func(token.ID)]struct{}{}}
}

// Get implements Store.
func (m *Memory) Get(_ context.Context, ids []token.ID) ([]Conf, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	confs := make([]Conf, len(ids))
	for i, id := range ids {
		confs[i] = m.confs[id]
	}
	return confs, nil
}

// Apply implements Store.
func (m *Memory) Apply(ctx context.Context, id token.ID, change Change) (Conf, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	after, events := m.confs[id].apply(id, change)
	if len(events) == 0 {
		return after, nil
	}
	if err := m.bus.Publish(ctx, usage.Batch{Events: events}); err != nil {
		return Conf{}, fmt.Errorf("publish %d events: %w", len(events), err)
	}
	m.confs[id] = after
	for changed := range m.watchers {
		(*changed)(id)
	}
	return after, nil
}

// Watch implements Store.
func (m *Memory) Watch(ctx context.Context, changed func(token.ID), lost func()) {
	m.mu.Lock()
	m.watchers[&changed] = struct{}{}
	m.mu.Unlock()
	lost()
	<-ctx.Done()
	m.mu.Lock()
	delete(m.watchers, &changed)
	m.mu.Unlock()
}
