package indexer

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/problem"
	"github.com/tallygate/tallygate/internal/token"
)

// Reader is what the query API asks of the history.
type Reader interface {
	Tokens(ctx context.Context, page history.Page) (tokens []history.Token, next string, err error)
	Token(ctx context.Context, id token.ID) (history.Token, error)
	Usage(ctx context.Context, id token.ID, span history.Span, resources ...string) ([]history.Point, error)
}

// APIOptions change how the query API works. The zero value is ready to use.
type APIOptions struct {
	// Log gets the errors that a client is not told, overriding the default of silence.
	Log *slog.Logger
	// QueryTimeout bounds one query, overriding the default 10 s.
	QueryTimeout time.Duration
}

// Handler answers the query API, everything under /v1/:
//
//	GET /v1/tokens?sort=-ops&limit=10&cursor=…
//	GET /v1/tokens/{token}
//	GET /v1/tokens/{token}/usage?from=&to=&step=1m&resource=
//
// Errors are application/problem+json and name the parameter and the remedy.
func Handler(reader Reader, opts APIOptions) http.Handler {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.QueryTimeout <= 0 {
		opts.QueryTimeout = 10 * time.Second
	}
	a := &api{reader: reader, opts: opts, now: time.Now}
	mux := http.NewServeMux()
	for path, handle := range map[string]func(*http.Request) (any, error){
		"/v1/tokens":               a.tokens,
		"/v1/tokens/{token}":       a.token,
		"/v1/tokens/{token}/usage": a.usage,
	} {
		mux.HandleFunc("GET "+path, a.answer(handle))
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Allow", "GET, HEAD")
			problem.Write(w, problem.New(http.StatusMethodNotAllowed, "", "use GET; the query API changes nothing"))
		})
	}
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, _ *http.Request) {
		problem.Write(w, problem.New(http.StatusNotFound, "", "there is nothing at this path; see /v1/tokens"))
	})
	return mux
}

type api struct {
	reader Reader
	opts   APIOptions
	now    func() time.Time
}

// TokenAnswer is a token's account as the API gives it.
type TokenAnswer struct {
	Token    string    `json:"token"` // as callers present it
	Ops      int64     `json:"ops"`   // admitted units
	Rejected int64     `json:"rejected"`
	Refunded int64     `json:"refunded"`
	First    time.Time `json:"first,omitzero"` // absent when nothing was ever admitted
	Last     time.Time `json:"last,omitzero"`
}

// TokensAnswer is a page of tokens.
type TokensAnswer struct {
	Tokens []TokenAnswer `json:"tokens"`
	Next   string        `json:"next,omitempty"` // cursor of the next page
}

// UsageAnswer is a token's usage over a span.
type UsageAnswer struct {
	Token  string        `json:"token"`
	StepS  int64         `json:"step_s"` // seconds
	Points []PointAnswer `json:"points"`
}

// PointAnswer is what was used in one step.
type PointAnswer struct {
	Start    time.Time `json:"start"`
	Admitted int64     `json:"admitted"` // units
	Rejected int64     `json:"rejected"`
	Refunded int64     `json:"refunded"`
}

func (a *api) tokens(r *http.Request) (any, error) {
	q, err := parameters(r, "sort", "limit", "cursor")
	if err != nil {
		return nil, err
	}
	page := history.Page{After: q.Get("cursor")}
	if page.Limit, err = q.number("limit", 50, 1, history.MaxPage); err != nil {
		return nil, err
	}
	if q.Has("sort") {
		if page.Sort, err = history.ParseSort(q.Get("sort")); err != nil {
			return nil, badParameter("sort", err)
		}
	}
	tokens, next, err := a.reader.Tokens(r.Context(), page)
	if errors.Is(err, history.ErrCursor) {
		return nil, badParameter("cursor", err)
	}
	if err != nil {
		return nil, err
	}
	answer := TokensAnswer{Tokens: make([]TokenAnswer, len(tokens)), Next: next}
	for i, t := range tokens {
		answer.Tokens[i] = tokenAnswer(t)
	}
	return answer, nil
}

func tokenAnswer(t history.Token) TokenAnswer {
	return TokenAnswer{
		Token: t.ID.Text(), Ops: t.Ops, Rejected: t.Rejected, Refunded: t.Refunded,
		First: unixTime(t.First), Last: unixTime(t.Last),
	}
}

// unixTime returns the zero time for 0.
func unixTime(seconds int64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0).UTC()
}

func (a *api) token(r *http.Request) (any, error) {
	if _, err := parameters(r); err != nil {
		return nil, err
	}
	id, err := token.Parse(r.PathValue("token"))
	if err != nil {
		return nil, badParameter("token", err)
	}
	t, err := a.reader.Token(r.Context(), id)
	if err != nil {
		return nil, err
	}
	return tokenAnswer(t), nil
}

func (a *api) usage(r *http.Request) (any, error) {
	q, err := parameters(r, "from", "to", "step", "resource")
	if err != nil {
		return nil, err
	}
	id, err := token.Parse(r.PathValue("token"))
	if err != nil {
		return nil, badParameter("token", err)
	}
	var span history.Span
	if span.To, err = q.time("to", a.now()); err != nil {
		return nil, err
	}
	if span.From, err = q.time("from", span.To.Add(-time.Hour)); err != nil {
		return nil, err
	}
	if span.Step, err = q.duration("step", time.Minute); err != nil {
		return nil, err
	}
	resources, err := q.resources("resource")
	if err != nil {
		return nil, err
	}
	points, err := a.reader.Usage(r.Context(), id, span, resources...)
	if errors.Is(err, history.ErrSpan) {
		return nil, badParameter("step", err)
	}
	if err != nil {
		return nil, err
	}
	answer := UsageAnswer{Token: id.Text(), StepS: int64(span.Step / time.Second), Points: make([]PointAnswer, len(points))}
	for i, p := range points {
		answer.Points[i] = PointAnswer{Start: p.Start, Admitted: p.Admitted, Rejected: p.Rejected, Refunded: p.Refunded}
	}
	return answer, nil
}

// answer makes an HTTP handler of one that returns what to answer.
func (a *api) answer(handle func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), a.opts.QueryTimeout)
		defer cancel()
		body, err := handle(r.WithContext(ctx))
		if err != nil {
			a.fail(w, r, err)
			return
		}
		content, err := json.Marshal(body)
		if err != nil {
			a.fail(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(append(content, '\n')) // the client has gone if this fails
	}
}

func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	var bad *parameterError
	switch {
	case errors.As(err, &bad):
		problem.Write(w, problem.New(http.StatusBadRequest, bad.name, bad.Error()))
	case errors.Is(err, history.ErrUnknownToken):
		problem.Write(w, problem.New(http.StatusNotFound, "token", err.Error()))
	case r.Context().Err() != nil: // the client has gone; nobody reads the answer
	default:
		a.opts.Log.Error("a query failed", "path", r.Pattern, "err", err)
		w.Header().Set("Retry-After", "5")
		problem.Write(w, problem.New(http.StatusServiceUnavailable, "", "the history does not answer; try again later"))
	}
}
