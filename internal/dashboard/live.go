package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/tallygate/tallygate/internal/usage"
)

const (
	lookEvery  = 2 * time.Second  // how often the history is asked for a change, at most
	keepEvery  = 20 * time.Second // a comment keeps proxies from closing a stream that is idle
	restFactor = 20               // rest at least so many times as long as the last look took
)

// live tells whoever watches that the history has changed. One look serves all
// watchers, and nobody looks while nobody watches.
type live struct {
	history History
	woken   chan struct{} // a first watcher has come

	mu       sync.Mutex
	watchers map[chan usage.Totals]struct{}
}

func newLive(h History) *live {
	return &live{history: h, woken: make(chan struct{}, 1), watchers: map[chan usage.Totals]struct{}{}}
}

// watch returns a channel on which the latest totals arrive after each change.
func (l *live) watch() chan usage.Totals {
	w := make(chan usage.Totals, 1)
	l.mu.Lock()
	l.watchers[w] = struct{}{}
	l.mu.Unlock()
	select {
	case l.woken <- struct{}{}:
	default:
	}
	return w
}

func (l *live) leave(w chan usage.Totals) {
	l.mu.Lock()
	delete(l.watchers, w)
	l.mu.Unlock()
}

func (l *live) watched() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.watchers) > 0
}

// tell replaces what a slow watcher has not yet taken.
func (l *live) tell(t usage.Totals) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.watchers {
		select {
		case <-w:
		default:
		}
		w <- t
	}
}

func (l *live) run(ctx context.Context) error {
	var last usage.Totals
	for {
		if !l.watched() {
			select {
			case <-ctx.Done():
				return nil
			case <-l.woken:
				continue
			}
		}
		began := time.Now()
		// A history that does not answer says so on the pages; here it has not changed.
		if now, err := l.history.Sum(ctx); err == nil && now != last {
			last = now
			l.tell(now)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(lookEvery, restFactor*time.Since(began))):
		}
	}
}

// serveLive streams an event "change" whenever the pages would show something new.
func (d *Dashboard) serveLive(w http.ResponseWriter, r *http.Request) {
	if who := d.auth.who(r); !who.may(viewers) {
		http.Error(w, "sign in first", http.StatusUnauthorized)
		return
	}
	out := http.NewResponseController(w)
	// The stream outlives the server's limit for answers.
	if err := out.SetWriteDeadline(time.Time{}); err != nil {
		http.Error(w, "this server cannot stream", http.StatusNotImplemented)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	changes := d.live.watch()
	defer d.live.leave(changes)
	send := func(text string) bool {
		_, err := fmt.Fprint(w, text)
		return err == nil && out.Flush() == nil
	}
	if !send("retry: 3000\n\n") {
		return
	}
	keep := time.NewTicker(keepEvery)
	defer keep.Stop()
	for {
		ok := true
		select {
		case <-r.Context().Done():
			return
		case <-d.Stopping:
			return
		case <-keep.C:
			ok = send(": still here\n\n")
		case t := <-changes:
			ok = send(fmt.Sprintf("event: change\ndata: {\"admitted\":%d,\"rejected\":%d}\n\n", t.Admitted, t.Rejected))
		}
		if !ok {
			return
		}
	}
}
