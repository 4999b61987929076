package forwardauth_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/enforcer"
	"github.com/tallygate/tallygate/internal/forwardauth"
	"github.com/tallygate/tallygate/internal/memory"
	"github.com/tallygate/tallygate/internal/proctest"
	"github.com/tallygate/tallygate/internal/rls"
	"github.com/tallygate/tallygate/internal/token"
)

const examples = "../../deploy/examples/"

func TestTheExampleConfigurationsAreAccepted(t *testing.T) {
	c, err := config.Load(examples+"tallygate.yaml", func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	rules, warnings, err := rls.Load(examples+c.RLS.ConfigDir, rls.LoadOptions{})
	if err != nil || len(warnings) > 0 || len(rules.Domains()) != 1 {
		t.Errorf("%v, %v, %v", rules, warnings, err)
	}
}

// TestNginxAsksAboutEveryRequest runs nginx with the example's configuration
// between a client, an application and an enforcer.
func TestNginxAsksAboutEveryRequest(t *testing.T) {
	program := proctest.Require(t, "apt-get install nginx-light", "nginx", "/usr/sbin/nginx")
	c, err := config.Load(examples+"tallygate.yaml", func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	c.Policies["shut"] = config.Policy{Blocked: true}
	c.ForwardAuth.Routes = append(c.ForwardAuth.Routes, config.Route{Path: "/shut", Policy: "shut", Cost: 1})
	mux := http.NewServeMux()
	forwardauth.New(c.ForwardAuth, enforcer.New(memory.New(memory.Options{}), enforcer.Compile(c), enforcer.Options{}), token.Parse).Register(mux)
	tallygate := httptest.NewServer(mux)
	defer tallygate.Close()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/own403" {
			w.WriteHeader(http.StatusForbidden)
		}
		_, _ = w.Write([]byte("the application"))
	}))
	defer app.Close()

	dir, address := t.TempDir(), proctest.FreeAddr(t)
	content, err := os.ReadFile(examples + "nginx/nginx.conf")
	if err != nil {
		t.Fatal(err)
	}
	configuration := strings.NewReplacer(
		"127.0.0.1:8080", strings.TrimPrefix(tallygate.URL, "http://"),
		"127.0.0.1:3000", strings.TrimPrefix(app.URL, "http://"),
		"127.0.0.1:8000", address,
		"http {", "pid "+dir+"/pid; daemon off; master_process off; error_log stderr;\nhttp { access_log off; client_body_temp_path "+dir+"/body; proxy_temp_path "+dir+"/proxy;"+
			" fastcgi_temp_path "+dir+"/f; uwsgi_temp_path "+dir+"/u; scgi_temp_path "+dir+"/s;",
		"worker_processes auto;", "worker_processes 1;",
	).Replace(string(content))
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	process := proctest.Start(t, exec.Command(program, "-p", dir, "-c", file, "-e", "stderr"))
	get := func(path, key string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			r.Header.Set("X-API-Key", key)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response
	}
	if err := process.Until(10*time.Second, func() error {
		r, err := http.Get("http://" + address + "/health")
		if err == nil {
			r.Body.Close()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}

	if r := get("/anything", "K"); r.StatusCode != 200 || r.Header.Get("RateLimit-Policy") != `"minute";q=60;w=60` || !strings.HasPrefix(r.Header.Get("RateLimit"), `"minute";r=59;t=`) {
		t.Errorf("a request that passes: %d %v", r.StatusCode, r.Header)
	}
	if r := get("/search/x", "S"); r.StatusCode != 200 {
		t.Errorf("a first search: %d", r.StatusCode)
	}
	last := 0
	for range 5 { // five units each, of twenty a minute; the minute may turn once
		if last = get("/search/x", "S").StatusCode; last == 429 {
			break
		}
	}
	r := get("/search/x", "S")
	if last != 429 || r.StatusCode != 429 || r.Header.Get("Retry-After") == "" || !strings.HasPrefix(r.Header.Get("RateLimit"), `"search";r=0;t=`) {
		t.Errorf("beyond the quota: %d %v", r.StatusCode, r.Header)
	}
	if r := get("/shut", "K"); r.StatusCode != 403 || r.Header.Get("Retry-After") != "" {
		t.Errorf("a blocked policy: %d %v", r.StatusCode, r.Header)
	}
	if r := get("/own403", "K"); r.StatusCode != 403 {
		t.Errorf("the application's own refusal: %d", r.StatusCode)
	}
	if r := get("/health", ""); r.StatusCode != 200 {
		t.Errorf("a free route: %d", r.StatusCode)
	}
}
