package forwardauth

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// place looks for a token in a question; "" is none.
type place func(h *Handler, r *http.Request, o original) string

func placeOf(from string) place {
	kind, name, _ := strings.Cut(from, ":")
	switch kind {
	case "bearer":
		return func(_ *Handler, r *http.Request, _ original) string { return bearer(r.Header) }
	case "header":
		return func(_ *Handler, r *http.Request, _ original) string { return r.Header.Get(name) }
	case "cookie":
		return func(_ *Handler, r *http.Request, _ original) string {
			if c, err := r.Cookie(name); err == nil {
				return c.Value
			}
			return ""
		}
	case "query":
		return func(_ *Handler, _ *http.Request, o original) string {
			values, _ := url.ParseQuery(o.query) // what can be read of it
			return values.Get(name)
		}
	}
	return func(h *Handler, r *http.Request, _ original) string { return h.client(r) }
}

// find returns the token of a question from the first place that has one.
func (h *Handler) find(r *http.Request, o original) string {
	for _, in := range h.places {
		if text := in(h, r, o); text != "" {
			return text
		}
	}
	return ""
}

// bearer returns the credential of Authorization: Bearer.
func bearer(h http.Header) string {
	scheme, credential, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(credential)
}

// client returns the client's address: the last one in X-Forwarded-For that no
// trusted proxy has, as far as trusted proxies vouch for what stands before them.
func (h *Handler) client(r *http.Request) string {
	at, ok := addressOf(r.RemoteAddr)
	if !ok {
		return ""
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		if !h.trusts(at) {
			break
		}
		before, ok := addressOf(strings.TrimSpace(hop))
		if !ok {
			break // what a trusted proxy could not have written vouches for nothing
		}
		at = before
	}
	return at.String()
}

func (h *Handler) trusts(a netip.Addr) bool {
	return slices.ContainsFunc(h.trusted, func(p netip.Prefix) bool { return p.Contains(a) })
}

// addressOf reads an address with or without a port.
func addressOf(text string) (netip.Addr, bool) {
	if host, _, err := net.SplitHostPort(text); err == nil {
		text = host
	}
	a, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return a.Unmap().WithZone(""), err == nil
}
