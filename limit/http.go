package limit

import (
	"errors"
	"net"
	"net/http"
)

// Option changes what Middleware does.
type Option func(*options)

type options struct {
	request  func(*http.Request) Request
	failOpen bool
}

// WithRequest says who asks for what, overriding the default: one unit of the
// default resource for the address that the connection comes from. Behind a proxy
// that is the proxy's; then name the caller in another way. A request without a
// token passes uncounted.
func WithRequest(request func(*http.Request) Request) Option {
	return func(o *options) { o.request = request }
}

// WithFailOpen lets requests pass while the counters cannot be reached, overriding
// the default, which answers 503.
func WithFailOpen() Option { return func(o *options) { o.failOpen = true } }

// Middleware returns middleware that passes on what is admitted, with RateLimit
// and RateLimit-Policy in the answer, and answers 429 with Retry-After and a
// problem (RFC 9457) otherwise.
func (l *Limiter) Middleware(opts ...Option) func(http.Handler) http.Handler {
	o := options{request: byAddress}
	for _, option := range opts {
		option(&o)
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			request := o.request(r)
			if request.Token == "" {
				next.ServeHTTP(w, r)
				return
			}
			answer, query, err := l.decide(r.Context(), request)
			switch {
			case errors.Is(err, ErrUnavailable) && o.failOpen:
				next.ServeHTTP(w, r)
			case errors.Is(err, ErrUnavailable), err == nil && !answer.Allowed:
				l.enforcer.Write(w, query, answer)
			case err != nil: // no token, or no resource, that could be counted
				http.Error(w, err.Error(), http.StatusBadRequest)
			default:
				l.enforcer.Headers(w.Header(), answer)
				next.ServeHTTP(w, r)
			}
		})
	}
}

func byAddress(r *http.Request) Request {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	return Request{Token: host, Cost: 1}
}
