package enforcer

import (
	"errors"
	"net/http"
	"strconv"
	"sync"

	"github.com/tallygate/tallygate/internal/problem"
	"github.com/tallygate/tallygate/internal/quota"
)

// Problem types of rejections, as registered for RFC 9457.
const (
	typeQuotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	typeReducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

// Register serves the public API on mux.
func (e *Enforcer) Register(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/decide", e.decide)
}

func (e *Enforcer) decide(w http.ResponseWriter, r *http.Request) {
	q, err := decodeQuery(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		e.refuse(w, err)
		return
	}
	answer, err := e.Decide(r.Context(), q)
	if err != nil {
		e.refuse(w, bad("policy", "%v", err))
		return
	}
	e.Write(w, q, answer)
}

// refuse answers an input that cannot be understood.
func (e *Enforcer) refuse(w http.ResponseWriter, err error) {
	e.metrics.refused.Inc()
	var input *badInput
	if !errors.As(err, &input) {
		input = &badInput{"body", err.Error()}
	}
	problem.Write(w, problem.New(http.StatusBadRequest, input.field, input.detail))
}

// unavailable answers when the store gave no decision. Its reason is in the logs
// of whoever lost the store, not in the answer.
func unavailable(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	problem.Write(w, problem.Details{
		Type: typeReducedCapacity, Title: "Temporarily unavailable", Status: http.StatusServiceUnavailable,
		Detail: "The counters cannot be reached, so nothing was decided; try again shortly.",
	})
}

// buffers hold answers while they are written; an answer to ten limits fits.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 2048); return &b }}

// Write answers a client with a decision: headers, and the body that all outcomes share.
func (e *Enforcer) Write(w http.ResponseWriter, q Query, a Answer) {
	switch {
	case errors.Is(a.Err, quota.ErrLease):
		e.refuse(w, bad("policy", "policy %q has a limit of concurrency, which takes a lease, and this call has none; name another policy", a.Rule.Policy))
		return
	case a.Err != nil:
		unavailable(w)
		return
	}
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	b := (*buffer)[:0]

	h := w.Header()
	b = e.headers(h, b, a)
	status, contentType := http.StatusOK, "application/json"
	if !a.Allowed {
		status, contentType = http.StatusTooManyRequests, "application/problem+json"
		switch {
		case a.Rule.Blocked:
			status = http.StatusForbidden
		case a.RetryAfter != quota.Never:
			h["Retry-After"] = []string{strconv.FormatInt(max(1, seconds(a.RetryAfter)), 10)}
		}
	}
	h["Content-Type"] = []string{contentType}
	b = appendBody(b[:0], status, q, a)
	h["Content-Length"] = []string{strconv.Itoa(len(b))}
	w.WriteHeader(status)
	_, _ = w.Write(b) // the client has gone if this fails
	*buffer = b
}

// Headers tells a client about the limits, in an answer that is somebody else's.
func (e *Enforcer) Headers(h http.Header, a Answer) { e.headers(h, nil, a) }

// headers uses b for what it writes, and returns it.
func (e *Enforcer) headers(h http.Header, b []byte, a Answer) []byte {
	if a.Rule.announced != "" {
		h["Ratelimit-Policy"] = []string{a.Rule.announced}
		if b = appendRateLimit(b, a); len(b) > 0 {
			h["Ratelimit"] = []string{string(b)}
		}
	}
	older(h, e.olderHeaders, a)
	return b
}

// appendRateLimit appends the value of the RateLimit header. A rejection lists
// the limits that refused, with the time until they would allow the same request,
// so that Retry-After, their latest, is never earlier than any t.
func appendRateLimit(b []byte, a Answer) []byte {
	for i, s := range a.Limits {
		if a.Rule.Limits[i].Shadow {
			continue
		}
		t := s.Reset
		if !a.Allowed {
			if s.RetryAfter == 0 || s.RetryAfter == quota.Never {
				continue
			}
			t = max(s.RetryAfter, 1)
		}
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = append(b, '"')
		b = append(b, a.Rule.Limits[i].Name...) // [a-z0-9-]: nothing to escape
		b = append(b, `";r=`...)
		b = strconv.AppendInt(b, s.Remaining, 10)
		b = append(b, ";t="...)
		b = strconv.AppendInt(b, seconds(t), 10)
	}
	return b
}
