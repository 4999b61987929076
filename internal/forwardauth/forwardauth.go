// Package forwardauth answers gateways that ask about each request of theirs
// before they pass it on: nginx auth_request, Traefik ForwardAuth, Caddy
// forward_auth, Envoy ext_authz over HTTP.
//
//	place    where a token is looked for: bearer, a header, query, cookie, the client's address
//	route    what requests of some methods to some paths cost
//
// A worked example: with token_from [bearer] and the route POST /v1/search/* →
// resource search, cost 5, the question
//
//	GET /v1/authorize
//	Authorization: Bearer T
//	X-Forwarded-Method: POST
//	X-Forwarded-Uri: /v1/search/books?q=go
//
// is decided as 5 units of search for the token T, and answered 200, 429 with
// Retry-After, 403 for a blocked token, 401 without a token, 503 without counters.
package forwardauth

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/enforcer"
	"github.com/tallygate/tallygate/internal/problem"
	"github.com/tallygate/tallygate/internal/token"
)

// Path is what gateways ask; a path of the request may follow it.
const Path = "/v1/authorize"

// StatusHeader tells the status of the answer once more, for gateways that hand
// on no other status than 401 and 403 (nginx).
const StatusHeader = "X-Tallygate-Status"

// Enforcer decides a query and writes the answer.
type Enforcer interface {
	Decide(ctx context.Context, q enforcer.Query) (enforcer.Answer, error)
	Write(w http.ResponseWriter, q enforcer.Query, a enforcer.Answer)
}

// Identify turns the text of a token into its ID; token.Parse is one.
type Identify func(text string) (token.ID, error)

// Handler answers Path. It is safe for concurrent use; make it with New.
type Handler struct {
	enforcer  Enforcer
	identify  Identify
	places    []place
	trusted   []netip.Prefix
	method    string // header
	uri       string // header
	routes    []route
	challenge string // WWW-Authenticate
	missing   string // what a client without a token is told
}

// New returns a handler as configured; c has been validated.
func New(c config.ForwardAuth, e Enforcer, identify Identify) *Handler {
	h := &Handler{enforcer: e, identify: identify, method: c.MethodHeader, uri: c.URIHeader, challenge: "ApiKey"}
	for _, network := range c.TrustedProxies {
		if prefix, err := netip.ParsePrefix(network); err == nil { // validated
			h.trusted = append(h.trusted, prefix.Masked())
		}
	}
	for _, from := range c.TokenFrom {
		h.places = append(h.places, placeOf(from))
		if from == "bearer" {
			h.challenge = "Bearer"
		}
	}
	h.missing = "The request brings no token; send one by: " + strings.Join(c.TokenFrom, ", ") + "."
	for _, r := range c.Routes {
		h.routes = append(h.routes, compile(r))
	}
	return h
}

// Register serves Path on mux, for every method, since some gateways ask with
// that of the request.
func (h *Handler) Register(mux *http.ServeMux) {
	mux.Handle(Path, h)
	mux.Handle(Path+"/", h)
}

// ServeHTTP answers whether the request that a gateway describes may pass. The
// parameter rejected=403 has rejections answered with that status instead of 429.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o := h.original(r)
	cost, free := h.route(o)
	if free {
		tell(w, http.StatusOK)
		w.WriteHeader(http.StatusOK)
		return
	}
	text := h.find(r, o)
	if text == "" {
		w.Header().Set("WWW-Authenticate", h.challenge)
		tell(w, http.StatusUnauthorized)
		problem.Write(w, problem.New(http.StatusUnauthorized, "", h.missing))
		return
	}
	id, err := h.identify(text)
	if err != nil {
		w.Header().Set("WWW-Authenticate", h.challenge)
		tell(w, http.StatusUnauthorized)
		problem.Write(w, problem.New(http.StatusUnauthorized, "token", err.Error()))
		return
	}
	q := enforcer.Query{Token: id, Resource: cost.resource, Cost: cost.units, Policy: cost.policy}
	answer, err := h.enforcer.Decide(r.Context(), q)
	if err != nil { // a policy that a reload has taken away
		tell(w, http.StatusInternalServerError)
		problem.Write(w, problem.New(http.StatusInternalServerError, "policy", err.Error()))
		return
	}
	h.enforcer.Write(&told{ResponseWriter: w, as403: rejectedAs403(r)}, q, answer)
}

// rejectedAs403 reads the parameter from the question's own query, which an
// original request's query may have been appended to.
func rejectedAs403(r *http.Request) bool {
	query, _, _ := strings.Cut(r.URL.RawQuery, "&")
	return query == "rejected=403" && r.URL.Path == Path
}

func tell(w http.ResponseWriter, status int) {
	w.Header().Set(StatusHeader, strconv.Itoa(status))
	w.Header().Set("Cache-Control", "no-store")
}

// told is a response that tells its status in a header as well.
type told struct {
	http.ResponseWriter
	as403 bool
}

func (t *told) WriteHeader(status int) {
	tell(t.ResponseWriter, status)
	if status == http.StatusTooManyRequests && t.as403 {
		status = http.StatusForbidden
	}
	t.ResponseWriter.WriteHeader(status)
}

// original is the request that a gateway asks about.
type original struct {
	method string
	path   string // clean, unescaped
	query  string
}

// original reads it from where the gateway was told to put it.
func (h *Handler) original(r *http.Request) original {
	o := original{method: r.Header.Get(h.method), path: "/"}
	if o.method == "" {
		o.method = r.Method
	}
	if rest, ok := strings.CutPrefix(r.URL.Path, Path+"/"); ok {
		o.path, o.query = path.Clean("/"+rest), r.URL.RawQuery
		return o
	}
	if u, err := url.ParseRequestURI(r.Header.Get(h.uri)); err == nil {
		o.path, o.query = path.Clean("/"+u.Path), u.RawQuery
	}
	return o
}

// route is one route, compiled.
type route struct {
	methods []string
	parts   []string // the path cut at each *
	cost    cost
	free    bool
}

// cost is what a request takes.
type cost struct {
	resource string // canonical
	units    int64
	policy   string
}

func compile(r config.Route) route {
	resource, _ := token.ParseResource(r.Resource) // validated
	compiled := route{parts: strings.Split(r.Path, "*"), cost: cost{resource, r.Cost, r.Policy}, free: r.Free}
	for _, m := range r.Methods {
		compiled.methods = append(compiled.methods, strings.ToUpper(m))
	}
	return compiled
}

// route returns what a request costs, or that it is free.
func (h *Handler) route(o original) (cost, bool) {
	for i := range h.routes {
		r := &h.routes[i]
		if (len(r.methods) == 0 || slices.Contains(r.methods, o.method)) && fits(r.parts, o.path) {
			return r.cost, r.free
		}
	}
	return cost{units: 1}, false
}

// fits reports whether text consists of parts in their order with anything between two of them.
func fits(parts []string, text string) bool {
	text, ok := strings.CutPrefix(text, parts[0])
	if !ok || len(parts) == 1 {
		return ok && text == ""
	}
	for _, part := range parts[1 : len(parts)-1] {
		if _, text, ok = strings.Cut(text, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(text, parts[len(parts)-1])
}
