package forwardauth_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/enforcer"
	"github.com/tallygate/tallygate/internal/forwardauth"
	"github.com/tallygate/tallygate/internal/memory"
	"github.com/tallygate/tallygate/internal/token"
)

// serve returns a function that asks a handler over an enforcer in memory.
func serve(c config.ForwardAuth) func(r *http.Request) *http.Response {
	all := config.Default()
	all.DefaultPolicy = "free"
	all.Policies = map[string]config.Policy{
		"free": {Limits: []config.Limit{
			{Name: "hour", Algorithm: "fixed_window", Quota: 3, Window: time.Hour},
			{Name: "search", Algorithm: "fixed_window", Quota: 1, Window: 24 * time.Hour, Resources: []string{"search"}},
		}},
		"shut": {Blocked: true},
	}
	if c.MethodHeader == "" {
		c.MethodHeader, c.URIHeader = "X-Forwarded-Method", "X-Forwarded-Uri"
	}
	mux := http.NewServeMux()
	forwardauth.New(c, enforcer.New(memory.New(memory.Options{}), enforcer.Compile(all), enforcer.Options{}), token.Parse).Register(mux)
	return func(r *http.Request) *http.Response {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w.Result()
	}
}

// question is what a gateway asks about a request; headers are name, value, name, value…
func question(method, uri string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/v1/authorize", nil)
	r.Header.Set("X-Forwarded-Method", method)
	r.Header.Set("X-Forwarded-Uri", uri)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func TestTheFirstPlaceWithATokenWins(t *testing.T) {
	places := config.ForwardAuth{
		TokenFrom:      []string{"bearer", "header:X-API-Key", "query:key", "cookie:session", "client_ip"},
		TrustedProxies: []string{"192.0.2.0/24"},
	}
	for want, r := range map[string]*http.Request{
		"B":         question("GET", "/?key=Q", "Authorization", "bearer B", "X-API-Key", "H", "Cookie", "session=C"),
		"H":         question("GET", "/?key=Q", "Authorization", "Basic x", "X-API-Key", "H", "Cookie", "session=C"),
		"Q":         question("GET", "/?key=Q", "Cookie", "session=C"),
		"C":         question("GET", "/", "Cookie", "session=C"),
		"192.0.2.1": question("GET", "/"),
	} {
		ask := serve(places)
		for range 3 {
			ask(r)
		}
		if a := ask(r); a.StatusCode != http.StatusTooManyRequests {
			t.Errorf("%s: %d", want, a.StatusCode)
		}
		other := question("GET", "/", "Authorization", "Bearer other")
		if a := ask(other); a.StatusCode != http.StatusOK {
			t.Errorf("another token: %d", a.StatusCode)
		}
	}
}

func TestTheClientsAddressIsOnlyBelievedFromTrustedProxies(t *testing.T) {
	for _, c := range []struct {
		name    string
		remote  string
		forward []string
		want    string
	}{
		{"no proxy", "203.0.113.9:1", nil, "203.0.113.9"},
		{"a stranger claims another", "203.0.113.9:1", []string{"198.51.100.1"}, "203.0.113.9"},
		{"a proxy tells", "10.0.0.1:1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"a client claims another to the proxy", "10.0.0.1:1", []string{"1.1.1.1, 198.51.100.1"}, "198.51.100.1"},
		{"two proxies", "10.0.0.1:1", []string{"198.51.100.1, 10.0.0.2"}, "198.51.100.1"},
		{"two headers", "10.0.0.1:1", []string{"198.51.100.1", "10.0.0.2"}, "198.51.100.1"},
		{"nonsense vouches for nothing", "10.0.0.1:1", []string{"1.1.1.1, unknown"}, "10.0.0.1"},
		{"with a port", "[::ffff:10.0.0.1]:1", []string{"[2001:db8::1]:443"}, "2001:db8::1"},
	} {
		ask := serve(config.ForwardAuth{TokenFrom: []string{"client_ip"}, TrustedProxies: []string{"10.0.0.0/8"}})
		r := question("GET", "/")
		r.RemoteAddr = c.remote
		for _, f := range c.forward {
			r.Header.Add("X-Forwarded-For", f)
		}
		for range 3 {
			ask(r)
		}
		same := question("GET", "/")
		same.RemoteAddr = "[" + c.want + "]:9"
		if got := ask(same).StatusCode; got != http.StatusTooManyRequests {
			t.Errorf("%s: it was not counted for %s", c.name, c.want)
		}
	}
}

func TestRoutesSayWhatARequestCosts(t *testing.T) {
	ask := serve(config.ForwardAuth{TokenFrom: []string{"bearer"}, Routes: []config.Route{
		{Path: "/health", Free: true},
		{Methods: []string{"post"}, Path: "/search/*", Resource: "search", Cost: 1},
		{Path: "/heavy/*/end", Cost: 3},
		{Path: "/shut*", Policy: "shut", Cost: 1},
	}})
	auth := func(name string) []string { return []string{"Authorization", "Bearer " + name} }
	for _, c := range []struct {
		method, uri, token string
		want               []int
	}{
		{"GET", "/health", "", []int{200}},
		{"GET", "/health/x", "", []int{401}},
		{"POST", "/search/a", "s", []int{200, 429}},
		{"POST", "/x/../search/b", "s2", []int{200, 429}},
		{"POST", "/search%2Fa", "s3", []int{200, 429}},
		{"GET", "/search/a", "g", []int{200, 200, 200, 429}},
		{"GET", "/heavy/1/2/end", "h", []int{200, 429}},
		{"GET", "/heavy/end", "h2", []int{200, 200, 200, 429}},
		{"GET", "/shut/x", "b", []int{403}},
		{"GET", "not a path", "n", []int{200}},
	} {
		for i, want := range c.want {
			var headers []string
			if c.token != "" {
				headers = auth(c.token)
			}
			if got := ask(question(c.method, c.uri, headers...)); got.StatusCode != want || got.Header.Get("X-Tallygate-Status") == "" {
				t.Errorf("%s %s, request %d: %d, want %d", c.method, c.uri, i, got.StatusCode, want)
			}
		}
	}
}

func TestTheRequestMayFollowThePathAsEnvoySendsIt(t *testing.T) {
	ask := serve(config.ForwardAuth{TokenFrom: []string{"query:key"}, Routes: []config.Route{{Methods: []string{"PUT"}, Path: "/search/*", Resource: "search", Cost: 1}}})
	for i, want := range []int{200, 429} {
		r := httptest.NewRequest(http.MethodPut, "/v1/authorize/search/a?key=K", nil)
		r.Header.Set("X-Forwarded-Uri", "/cheap") // a client's own: the gateway did not put it there
		if got := ask(r).StatusCode; got != want {
			t.Errorf("request %d: %d, want %d", i, got, want)
		}
	}
}

func TestAnAnswerSaysWhatAGatewayHandsOn(t *testing.T) {
	ask := serve(config.ForwardAuth{TokenFrom: []string{"bearer"}})
	if r := ask(question("GET", "/")); r.StatusCode != 401 || r.Header.Get("WWW-Authenticate") != "Bearer" || r.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d %v", r.StatusCode, r.Header)
	}
	if r := ask(question("GET", "/", "Authorization", "Bearer "+strings.Repeat("x", 300))); r.StatusCode != 401 {
		t.Errorf("a token that is none: %d", r.StatusCode)
	}
	r := ask(question("GET", "/", "Authorization", "Bearer T"))
	if r.Header.Get("RateLimit") == "" || r.Header.Get("RateLimit-Policy") != `"hour";q=3;w=3600` {
		t.Errorf("%v", r.Header)
	}
	for range 2 {
		ask(question("GET", "/", "Authorization", "Bearer T"))
	}
	if r := ask(question("GET", "/", "Authorization", "Bearer T")); r.StatusCode != 429 || r.Header.Get("Retry-After") == "" || r.Header.Get("X-Tallygate-Status") != "429" {
		t.Errorf("%d %v", r.StatusCode, r.Header)
	}
	q := question("GET", "/?rejected=200", "Authorization", "Bearer T")
	q.URL.RawQuery = "rejected=403"
	if r := ask(q); r.StatusCode != 403 || r.Header.Get("X-Tallygate-Status") != "429" {
		t.Errorf("%d %v", r.StatusCode, r.Header)
	}
}

// FuzzAuthorize proves that no question makes the handler panic.
func FuzzAuthorize(f *testing.F) {
	ask := serve(config.ForwardAuth{TokenFrom: []string{"bearer", "query:key", "cookie:c"}, Routes: []config.Route{{Path: "/free/*", Free: true}}})
	f.Add("GET", "/free/../x?key=", "Bearer ", "a=b")
	f.Add("", "//free/x", "bearer", "c=")
	f.Fuzz(func(t *testing.T, method, uri, authorization, cookie string) {
		r := question(method, uri, "Authorization", authorization, "Cookie", cookie, "X-Forwarded-For", uri)
		if got := ask(r).StatusCode; got < 200 || got > 599 {
			t.Fatalf("status %d", got)
		}
	})
}
