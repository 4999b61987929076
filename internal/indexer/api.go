package indexer

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/problem"
	"github.com/tallygate/tallygate/internal/query"
	"github.com/tallygate/tallygate/internal/token"
)

// Reader is what the query API asks of the history.
type Reader interface {
	query.Source
	Token(ctx context.Context, id token.ID) (history.Token, error)
	Usage(ctx context.Context, id token.ID, span history.Span, resources ...string) ([]history.Point, error)
	TotalUsage(ctx context.Context, span history.Span, resources ...string) ([]history.Point, error)
	Top(ctx context.Context, from, to time.Time, by history.Sort, limit int, resources ...string) ([]history.Token, error)
	Events(ctx context.Context, page history.EventPage) (events []history.Event, next string, err error)
}

// APIOptions change how the query API works. The zero value is ready to use.
type APIOptions struct {
	// Search answers what is asked about many tokens, overriding the default of the
	// history, which does not know their rate, peak and percent of quota.
	Search query.Source
	// ReadTokens are the SHA-256 digests, in hexadecimal, of the bearer tokens that
	// may read, overriding the default of none: then everybody may.
	ReadTokens []string
	// Log gets the errors that a client is not told, overriding the default of silence.
	Log *slog.Logger
	// QueryTimeout bounds one query, overriding the default 10 s.
	QueryTimeout time.Duration
}

// Handler answers the query API, everything under /v1/; openapi.yaml describes it,
// and GET /v1/openapi.yaml returns that. Errors are application/problem+json and
// name the parameter and the remedy. It fails when a read token is no digest.
func Handler(reader Reader, opts APIOptions) (http.Handler, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.QueryTimeout <= 0 {
		opts.QueryTimeout = 10 * time.Second
	}
	if opts.Search == nil {
		opts.Search = reader
	}
	a := &api{reader: reader, opts: opts, now: time.Now}
	mux := http.NewServeMux()
	for path, handle := range a.routes() {
		mux.HandleFunc("GET "+path, a.answer(handle))
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Allow", "GET, HEAD")
			problem.Write(w, problem.New(http.StatusMethodNotAllowed, "", "use GET; the query API changes nothing"))
		})
	}
	mux.HandleFunc("GET /v1/openapi.yaml", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(openAPI))
	})
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, _ *http.Request) {
		problem.Write(w, problem.New(http.StatusNotFound, "", "there is nothing at this path; GET /v1/openapi.yaml says what there is"))
	})
	return requireBearer(opts.ReadTokens, mux)
}

// openAPI describes the query API; a test holds it and the handlers together.
//
//go:embed openapi.yaml
var openAPI []byte

func (a *api) routes() map[string]func(*http.Request) (any, error) {
	return map[string]func(*http.Request) (any, error){
		"/v1/tokens":                a.tokens,
		"/v1/tokens/{token}":        a.token,
		"/v1/tokens/{token}/usage":  a.usage,
		"/v1/tokens/{token}/events": a.events,
		"/v1/groups":                a.groups,
		"/v1/top":                   a.top,
		"/v1/usage":                 a.totalUsage,
		"/v1/events":                a.events,
	}
}

type api struct {
	reader Reader
	opts   APIOptions
	now    func() time.Time
}

// answer makes an HTTP handler of one that returns what to answer. The answer
// carries an ETag, so that a client that has it already is spared the body.
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
		content = append(content, '\n')
		digest := sha256.Sum256(content)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "private, no-cache") // keep it, but ask each time
		w.Header().Set("ETag", `"`+hex.EncodeToString(digest[:16])+`"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
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
