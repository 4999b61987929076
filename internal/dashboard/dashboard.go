// Package dashboard shows the history to people: pages rendered on the server,
// from templates, styles, fonts and two small scripts that are part of the binary.
//
//	GET /                     admitted and rejected over time, top tokens
//	GET /tokens               tokens that match a query, sorted, page by page
//	GET /token?t=T            one token: usage by resource, its story
//	GET /policies             the limits in force
//	GET /audit                who changed what, when and why
//	GET /overview.csv …       the figures of a page as CSV
//	GET /live                 server-sent events: something has changed
//
// All that a page shows is in its URL, so that a link to it shows the same. The
// pages work without scripts; with them they update themselves.
//
// Times in URLs are RFC 3339, spans are 1h, 24h, 7d and the like, tokens and
// resources are texts and not IDs.
package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/query"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// History is what the dashboard reads; *history.Store is one.
type History interface {
	query.Source
	Sum(ctx context.Context) (usage.Totals, error)
	Token(ctx context.Context, id token.ID) (history.Token, error)
	Resources(ctx context.Context, id token.ID) ([]string, error)
	Usage(ctx context.Context, id token.ID, span history.Span, resources ...string) ([]history.Point, error)
	TotalUsage(ctx context.Context, span history.Span, resources ...string) ([]history.Point, error)
	Top(ctx context.Context, from, to time.Time, by history.Sort, limit int, resources ...string) ([]history.Token, error)
	Events(ctx context.Context, page history.EventPage) ([]history.Event, string, error)
}

// Policies are the policies in force.
type Policies struct {
	Default string // the policy of requests that name none
	ByName  map[string]config.Policy
}

// Options say what a dashboard shows and to whom.
type Options struct {
	History History
	// Search answers queries about tokens, History unless set.
	Search   query.Source
	Policies func() Policies // asked anew for each page
	Version  string          // of the program, shown at the foot of each page
	// Credentials let people sign in. Without any, everybody may look who asks
	// from this machine by a name of this machine, and nobody else.
	Credentials []Credential
	// Open lets everybody look without signing in, from anywhere. Choose it only
	// behind something that knows who may.
	Open bool
	Log  *slog.Logger
	// Stopping ends the streams of live updates when it is closed: otherwise they
	// never end. Nil is never.
	Stopping <-chan struct{}
	// Now is the clock; time.Now unless set.
	Now func() time.Time
}

// Dashboard is an http.Handler. It is safe for concurrent use. Live updates need
// Run to run.
type Dashboard struct {
	Options
	handler http.Handler
	auth    *auth
	live    *live
}

// New returns a dashboard. It reads nothing yet.
func New(o Options) (*Dashboard, error) {
	if o.History == nil || o.Policies == nil || o.Log == nil {
		return nil, errors.New("dashboard: History, Policies and Log must be set")
	}
	if o.Search == nil {
		o.Search = o.History
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	auth, err := newAuth(o.Credentials, o.Open, o.Now)
	if err != nil {
		return nil, err
	}
	d := &Dashboard{Options: o, auth: auth, live: newLive(o.History)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /assets/{name}", serveAsset)
	mux.HandleFunc("POST /theme", d.setTheme)
	mux.HandleFunc("GET /sign-in", d.page(d.signInPage, everybody))
	mux.HandleFunc("POST /sign-in", d.signIn)
	mux.HandleFunc("POST /sign-out", d.signOut)
	mux.HandleFunc("GET /{$}", d.page(d.overview, viewers))
	mux.HandleFunc("GET /overview.csv", d.download(d.overviewCSV))
	mux.HandleFunc("GET /tokens", d.page(d.tokens, viewers))
	mux.HandleFunc("GET /tokens.csv", d.download(d.tokensCSV))
	mux.HandleFunc("GET /token", d.page(d.token, viewers))
	mux.HandleFunc("GET /token.csv", d.download(d.tokenCSV))
	mux.HandleFunc("GET /policies", d.page(d.policies, viewers))
	mux.HandleFunc("GET /audit", d.page(d.audit, viewers))
	mux.HandleFunc("GET /audit.csv", d.download(d.auditCSV))
	mux.HandleFunc("GET /live", d.serveLive)
	mux.HandleFunc("GET /", d.page(func(*request) (*view, error) { return nil, errNoPage }, everybody))
	// Browsers say where a form was sent from: one from elsewhere is refused.
	d.handler = secure(http.NewCrossOriginProtection().Handler(mux))
	return d, nil
}

// Run watches the history while somebody looks, until ctx ends.
func (d *Dashboard) Run(ctx context.Context) error { return d.live.run(ctx) }

// ServeHTTP implements http.Handler.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.handler.ServeHTTP(w, r) }

// secure sets the headers that every answer has.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "+
			"font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin") // a token's name stands in the URL
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}
