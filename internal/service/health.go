package service

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

const (
	checkTimeout = time.Second
	checkEvery   = time.Second // asked more often, /readyz repeats its last answer
)

// Health answers whether a service lives and whether it is ready for work. It is
// safe for concurrent use.
type Health struct {
	log      *slog.Logger
	drain    sync.Once
	draining chan struct{} // closed when the service has begun to stop

	mu      sync.Mutex
	checks  []check
	checked time.Time
	failing map[string]string // by the last round of checks: name → what a client may know
}

type check struct {
	name string
	ask  func(ctx context.Context) error
}

// Add makes readiness depend on ask returning nil. Its error is logged; clients
// only learn the name.
func (h *Health) Add(name string, ask func(ctx context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = append(h.checks, check{name, ask})
}

// Drain makes the service unready for good, so that balancers turn away from it.
func (h *Health) Drain() { h.drain.Do(func() { close(h.draining) }) }

// Draining returns a channel that is closed when the service begins to stop: a
// response that would go on for ever ends then.
func (h *Health) Draining() <-chan struct{} { return h.draining }

// Register serves GET /healthz and GET /readyz.
func (h *Health) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"status": "alive"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-h.draining:
			answer(w, http.StatusServiceUnavailable, map[string]any{"status": "draining"})
			return
		default:
		}
		if failing := h.check(r.Context()); len(failing) > 0 {
			answer(w, http.StatusServiceUnavailable, map[string]any{"status": "not ready", "failing": failing})
			return
		}
		answer(w, http.StatusOK, map[string]any{"status": "ready"})
	})
}

// check asks all checks, or returns the last answer when that is recent.
func (h *Health) check(ctx context.Context) map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.checked) < checkEvery {
		return h.failing
	}
	// The answer serves others too: it must not fail because this client has left.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
	defer cancel()
	failing := map[string]string{}
	for _, c := range h.checks {
		err := c.ask(ctx)
		_, before := h.failing[c.name]
		switch {
		case err != nil:
			failing[c.name] = "unavailable"
			if !before {
				h.log.Warn("not ready", "check", c.name, "error", err)
			}
		case before:
			h.log.Info("ready again", "check", c.name)
		}
	}
	h.failing, h.checked = failing, time.Now()
	return failing
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client has gone if this fails
}
