package config

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// ForwardAuth configures /v1/authorize, which gateways ask about each request.
type ForwardAuth struct {
	// TokenFrom are the places that a token is looked for in, the first that has
	// one wins: bearer, header:NAME, query:NAME, cookie:NAME, client_ip. Empty, the
	// default, turns /v1/authorize off.
	TokenFrom []string `yaml:"token_from"`
	// TrustedProxies are networks whose X-Forwarded-For is believed. Default loopback.
	TrustedProxies []string `yaml:"trusted_proxies"`
	// MethodHeader is where the gateway puts the request's method. Default X-Forwarded-Method.
	MethodHeader string `yaml:"method_header"`
	// URIHeader is where the gateway puts the request's path and query. Default
	// X-Forwarded-Uri. A path after /v1/authorize wins over it.
	URIHeader string `yaml:"uri_header"`
	// Routes say what requests cost; the first that fits holds. A request that none
	// fits costs one unit of the default resource.
	Routes []Route `yaml:"routes"`
}

// Route says what requests of some methods to some paths cost.
type Route struct {
	Methods  []string `yaml:"methods"`  // none means all
	Path     string   `yaml:"path"`     // each * stands for anything, slashes too
	Resource string   `yaml:"resource"` // default the default resource
	Cost     int64    `yaml:"cost"`     // units; default 1
	Policy   string   `yaml:"policy"`   // default the default policy
	Free     bool     `yaml:"free"`     // passes without a token, and is not counted
}

func defaultForwardAuth() ForwardAuth {
	return ForwardAuth{
		TokenFrom: []string{}, TrustedProxies: []string{"127.0.0.0/8", "::1/128"},
		MethodHeader: "X-Forwarded-Method", URIHeader: "X-Forwarded-Uri", Routes: []Route{},
	}
}

var headerShape = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

func (f *ForwardAuth) validate(policies map[string]Policy, wrong report) {
	for i, from := range f.TokenFrom {
		kind, name, named := strings.Cut(from, ":")
		switch kind {
		case "bearer", "client_ip":
			named = !named
		case "header", "query", "cookie":
			named = named && name != ""
		default:
			named = false
		}
		if !named {
			wrong(fmt.Sprintf("forward_auth.token_from[%d]", i), "%q is not one of: bearer, header:NAME, query:NAME, cookie:NAME, client_ip", from)
		}
	}
	for i, network := range f.TrustedProxies {
		if _, err := netip.ParsePrefix(network); err != nil {
			wrong(fmt.Sprintf("forward_auth.trusted_proxies[%d]", i), "%q is not a network, for example 10.0.0.0/8", network)
		}
	}
	for key, name := range map[string]string{"method_header": f.MethodHeader, "uri_header": f.URIHeader} {
		if !headerShape.MatchString(name) {
			wrong("forward_auth."+key, "%q is not the name of a header", name)
		}
	}
	for i := range f.Routes {
		key := fmt.Sprintf("forward_auth.routes[%d]", i)
		f.Routes[i].validate(key, wrong)
		if name := f.Routes[i].Policy; name != "" {
			if _, ok := policies[name]; !ok {
				wrong(key+".policy", "there is no policy %q; name one of those under policies", name)
			}
		}
	}
}

func (r *Route) validate(key string, wrong report) {
	if !strings.HasPrefix(r.Path, "/") && !strings.HasPrefix(r.Path, "*") {
		wrong(key+".path", "%q begins with neither / nor *", r.Path)
	}
	if r.Cost < 0 || r.Cost > quota.MaxCost {
		wrong(key+".cost", "%d is not between 0 and %d", r.Cost, int64(quota.MaxCost))
	}
	if r.Cost == 0 {
		r.Cost = 1
	}
	if _, err := token.ParseResource(r.Resource); err != nil {
		wrong(key+".resource", "%v", err)
	}
	if r.Free && (r.Resource != "" || r.Policy != "" || r.Cost > 1) {
		wrong(key+".free", "a free route has no resource, cost or policy; remove them or free")
	}
}
