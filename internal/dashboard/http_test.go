package dashboard_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/dashboard"
	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/usage"
)

func TestNoPageNeedsWhatTheContentSecurityPolicyForbids(t *testing.T) {
	server := serve(t, filled(t))
	inline := regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+=|javascript:|<script(?:>|[^>]*[^r]>[^<])|https?://`)
	for _, p := range allPages {
		answer, body := get(t, server.URL+p.path)
		csp := answer.Header.Get("Content-Security-Policy")
		if !strings.HasPrefix(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: the policy is %q", p.path, csp)
		}
		if answer.Header.Get("X-Content-Type-Options") != "nosniff" || answer.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: the headers are %v", p.path, answer.Header)
		}
		if found := inline.FindString(body); found != "" {
			t.Errorf("%s contains %q", p.path, found)
		}
	}
}

func TestEveryAssetThatAPageNamesIsServedAndKept(t *testing.T) {
	server := serve(t, filled(t))
	_, body := get(t, server.URL)
	named := regexp.MustCompile(`/assets/[^"]+`).FindAllString(body, -1)
	if len(named) < 4 {
		t.Fatalf("the page names only %v", named)
	}
	for _, path := range append(named, "/assets/jetbrains-mono.woff2", "/assets/inter.LICENSE") {
		answer, content := get(t, server.URL+path)
		if answer.StatusCode != 200 || len(content) == 0 {
			t.Errorf("%s: %s", path, answer.Status)
		}
		if strings.Contains(path, "?v=") != strings.Contains(answer.Header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s is kept: %s", path, answer.Header.Get("Cache-Control"))
		}
		if again, _ := get(t, server.URL+path, "If-None-Match", answer.Header.Get("ETag")); again.StatusCode != 304 {
			t.Errorf("%s again: %s", path, again.Status)
		}
	}
	if answer, _ := get(t, server.URL+"/assets/..%2fdashboard.go"); answer.StatusCode != 404 {
		t.Errorf("a file outside of the assets: %s", answer.Status)
	}
}

// figure returns what a page shows as a figure of the given name.
func figure(t *testing.T, page, name string) int64 {
	t.Helper()
	m := regexp.MustCompile(`data-figure="` + name + `"[^>]*>([\d,]+)<`).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("the page has no figure %s", name)
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(m[1], ",", ""), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// column adds up a column of a CSV file.
func column(t *testing.T, file, name string) (total int64) {
	t.Helper()
	rows, err := csv.NewReader(strings.NewReader(file)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for i, header := range rows[0] {
		if header != name {
			continue
		}
		for _, row := range rows[1:] {
			n, err := strconv.ParseInt(row[i], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			total += n
		}
		return total
	}
	t.Fatalf("there is no column %s in %v", name, rows[0])
	return 0
}

func TestPagesAndDownloadsShowTheFiguresOfTheHistory(t *testing.T) {
	store := filled(t)
	server := serve(t, store)
	for _, span := range []string{"span=1h", "span=24h", "span=30d", "from=2026-03-11T00:00&to=2026-03-12T00:00", "from=2026-03-01&to=2026-03-08&tz=America/New_York", "span=24h&resource=search", "span=24h&resource="} {
		_, page := get(t, server.URL+"/?"+span)
		_, file := get(t, server.URL+"/overview.csv?"+span)
		admitted, rejected := column(t, file, "admitted"), column(t, file, "rejected")
		if admitted == 0 || figure(t, page, "admitted") != admitted || figure(t, page, "rejected") != rejected {
			t.Errorf("%s: the page shows %d and %d, the file %d and %d", span, figure(t, page, "admitted"), figure(t, page, "rejected"), admitted, rejected)
		}
	}
	// A span that is given in the reader's zone is the history's, to the minute.
	from := time.Date(2026, 3, 11, 23, 0, 0, 0, time.UTC)
	points, err := store.TotalUsage(context.Background(), history.Span{From: from, To: from.Add(time.Hour), Step: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	_, page := get(t, server.URL+"/?from=2026-03-12T00:00&to=2026-03-12T01:00&tz=Europe/Berlin")
	if got := figure(t, page, "admitted"); got != points[0].Admitted {
		t.Errorf("midnight to one in Berlin: the page shows %d, the history holds %d", got, points[0].Admitted)
	}

	for _, c := range callers {
		known, err := store.Token(context.Background(), parse(t, c.text))
		if err != nil {
			t.Fatal(err)
		}
		address := server.URL + "/token?" + url.Values{"t": {c.text}, "span": {"90d"}}.Encode()
		_, page := get(t, address)
		if figure(t, page, "ops") != known.Ops || figure(t, page, "admitted") != known.Ops || figure(t, page, "rejected") != known.Rejected {
			t.Errorf("%s: the page shows %d, the history holds %d", c.text, figure(t, page, "ops"), known.Ops)
		}
	}
}

func TestHostileNamesStayText(t *testing.T) {
	server := serve(t, filled(t))
	for _, path := range []string{"/?span=24h", "/tokens"} {
		_, page := get(t, server.URL+path)
		if strings.Contains(page, `<b>"`) || !strings.Contains(page, "&lt;b&gt;") {
			t.Errorf("%s: a token's name is markup", path)
		}
	}
	_, file := get(t, server.URL+"/tokens.csv")
	rows, err := csv.NewReader(strings.NewReader(file)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != len(callers)+1 {
		t.Errorf("%d rows, want %d", len(rows), len(callers)+1)
	}
	for _, row := range rows {
		if strings.HasPrefix(row[0], "=") {
			t.Errorf("a spreadsheet would compute %s", row[0])
		}
	}
	for _, attempt := range []string{"/token?t=%3Cscript%3E", "/audit?kind=%22%3E%3Cscript%3E", "/tokens?q=%3Cscript%3Ealert(1)%3C/script%3E", "/?resource=%3Cscript%3E", "/sign-in?next=%22%3E%3Cscript%3E", "/%3Cscript%3E"} {
		if _, page := get(t, server.URL+attempt); strings.Contains(page, "<script>") {
			t.Errorf("%s: the page repeats markup", attempt)
		}
	}
}

func TestBadAddressesSayWhatToMend(t *testing.T) {
	server := serve(t, filled(t))
	for path, want := range map[string]struct {
		status int
		words  string
	}{
		"/nowhere":                        {404, "No such page"},
		"/token?t=nobody":                 {404, "holds no usage of this token"},
		"/token":                          {400, "empty"},
		"/token?t=" + longText:            {400, "256"},
		"/?span=fortnight":                {400, "90m, 24h, 7d or 4w"},
		"/?span=-1h":                      {400, "90m, 24h, 7d or 4w"},
		"/?span=99999d":                   {400, "at most 20 years"},
		"/?from=yesterday&to=now":         {400, "from is"},
		"/?from=2026-03-02&to=2026-03-01": {400, "must be before"},
		"/?from=1900-01-01&to=2026-03-01": {400, "too long"},
		"/?tz=Mars/Olympus":               {400, "Europe/Berlin"},
		"/?tz=../../etc/passwd":           {400, "Europe/Berlin"},
		"/?resource=" + longText:          {400, "128"},
		"/tokens?sort=beauty":             {400, "rejected"},
		"/tokens?limit=0":                 {400, "1 to 500"},
		"/tokens?after=nonsense":          {400, "unchanged"},
		"/tokens?q=oops%3C3":              {400, "no field"},
		"/audit?after=nonsense":           {400, "unchanged"},
		"/audit?t=" + longText:            {400, "256"},
		"/overview.csv?span=x":            {400, "24h"},
		"/token.csv":                      {400, "empty"},
	} {
		answer, page := get(t, server.URL+path)
		if answer.StatusCode != want.status || !strings.Contains(page, want.words) {
			t.Errorf("%.60s: %s, want %d and %q", path, answer.Status, want.status, want.words)
		}
	}
}

var longText = strings.Repeat("x", 300)

func TestAHistoryThatIsAwayIsAPageThatSaysSo(t *testing.T) {
	store := filled(t)
	server := serve(t, store)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/", "/tokens", "/token?t=acme-production", "/audit", "/overview.csv"} {
		if answer, page := get(t, server.URL+path); answer.StatusCode != 503 || !strings.Contains(page, "Try again") || strings.Contains(page, "sql") {
			t.Errorf("%s: %s", path, answer.Status)
		}
	}
	if answer, _ := get(t, server.URL+"/policies"); answer.StatusCode != 200 {
		t.Errorf("the policies need no history: %s", answer.Status)
	}
}

func TestWithoutCredentialsOnlyThisMachineMayLook(t *testing.T) {
	store := filled(t)
	server := serve(t, store)
	host := strings.TrimPrefix(server.URL, "http://")
	_, port, _ := strings.Cut(host, ":")
	for name, want := range map[string]int{
		host: 200, "localhost:" + port: 200, "[::1]:" + port: 200, "127.0.0.1": 200,
		"rebound.example:" + port: 403, "localhost.example": 403, "192.0.2.1": 403, "": 200, // Go fills in the address
	} {
		if answer, _ := get(t, server.URL+"/", "Host", name); answer.StatusCode != want {
			t.Errorf("by the name %q: %s, want %d", name, answer.Status, want)
		}
	}
	handler := server.Config.Handler
	r := httptest.NewRequest(http.MethodGet, "http://localhost/", nil)
	r.RemoteAddr = "192.0.2.7:4000"
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if w.Code != 403 || !strings.Contains(w.Body.String(), "indexer.dashboard.credentials") {
		t.Errorf("from elsewhere: %d", w.Code)
	}
	for _, path := range []string{"/overview.csv", "/tokens.csv", "/audit.csv", "/live"} {
		if answer, _ := get(t, server.URL+path, "Host", "rebound.example"); answer.StatusCode < 400 {
			t.Errorf("%s by another name: %s", path, answer.Status)
		}
	}
	open := serve(t, store, func(o *dashboard.Options) { o.Open = true })
	if answer, _ := get(t, open.URL+"/", "Host", "tallygate.example"); answer.StatusCode != 200 {
		t.Errorf("open to all: %s", answer.Status)
	}
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

var people = []dashboard.Credential{
	{Name: "auditor", Role: dashboard.View, SHA256: digest("look-only")},
	{Name: "operator", Role: dashboard.Admin, SHA256: digest("may-do-all")},
}

// signIn posts a token and returns the answer and the session that it gave.
func signIn(t *testing.T, server *httptest.Server, token string, header ...string) (*http.Response, string) {
	t.Helper()
	form := url.Values{"token": {token}, "next": {"/tokens?sort=-last"}}
	req, err := http.NewRequest(http.MethodPost, server.URL+"/sign-in", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	answer, _ := do(t, req)
	for _, c := range answer.Cookies() {
		if c.Name == "tallygate_session" {
			if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode {
				t.Errorf("the session's cookie is %v", c)
			}
			return answer, c.Name + "=" + c.Value
		}
	}
	return answer, ""
}

func TestOnlyAValidTokenOpensTheDashboard(t *testing.T) {
	clock := now
	store := filled(t)
	server := serve(t, store, func(o *dashboard.Options) {
		o.Credentials = people
		o.Now = func() time.Time { return clock }
	})
	for _, path := range []string{"/", "/tokens", "/token?t=acme-production", "/policies", "/audit", "/overview.csv", "/tokens.csv"} {
		if answer, body := get(t, server.URL+path); answer.StatusCode != 303 || !strings.HasPrefix(answer.Header.Get("Location"), "/sign-in?next=") || strings.Contains(body, "Admitted") {
			t.Errorf("%s without signing in: %s", path, answer.Status)
		}
	}
	if answer, _ := get(t, server.URL+"/live"); answer.StatusCode != 401 {
		t.Errorf("/live: %s", answer.Status)
	}
	for _, wrong := range []string{"", "look-onl", "look-only2", digest("look-only")} {
		if answer, session := signIn(t, server, wrong); answer.StatusCode != 403 || session != "" {
			t.Errorf("token %q: %s", wrong, answer.Status)
		}
		if answer, _ := get(t, server.URL+"/", "Authorization", "Bearer "+wrong); answer.StatusCode != 303 {
			t.Errorf("bearer %q: %s", wrong, answer.Status)
		}
	}
	if answer, _ := get(t, server.URL+"/", "Authorization", "Bearer look-only"); answer.StatusCode != 200 {
		t.Errorf("bearer: %s", answer.Status)
	}
	answer, session := signIn(t, server, "look-only")
	if answer.StatusCode != 303 || answer.Header.Get("Location") != "/tokens?sort=-last" || session == "" {
		t.Fatalf("signing in: %s to %s", answer.Status, answer.Header.Get("Location"))
	}
	if answer, page := get(t, server.URL+"/", "Cookie", session); answer.StatusCode != 200 || !strings.Contains(page, "auditor") {
		t.Errorf("with a session: %s", answer.Status)
	}
	for name, forged := range map[string]string{
		"changed": session[:len(session)-3] + "abc", "cut": session[:len(session)/2], "empty": "tallygate_session=",
	} {
		if answer, _ := get(t, server.URL+"/", "Cookie", forged); answer.StatusCode != 303 {
			t.Errorf("a session that is %s: %s", name, answer.Status)
		}
	}
	other := serve(t, store, func(o *dashboard.Options) { o.Credentials = people[:1] })
	if answer, _ := get(t, other.URL+"/", "Cookie", session); answer.StatusCode != 303 {
		t.Errorf("after the credentials have changed: %s", answer.Status)
	}
	clock = now.Add(13 * time.Hour)
	if answer, _ := get(t, server.URL+"/", "Cookie", session); answer.StatusCode != 303 {
		t.Errorf("half a day later: %s", answer.Status)
	}
}

func TestFormsFromElsewhereAreRefused(t *testing.T) {
	server := serve(t, filled(t), func(o *dashboard.Options) { o.Credentials = people })
	for name, header := range map[string][]string{
		"another site":     {"Sec-Fetch-Site", "cross-site"},
		"a sister site":    {"Sec-Fetch-Site", "same-site"},
		"an older browser": {"Origin", "https://elsewhere.example"},
	} {
		if answer, session := signIn(t, server, "may-do-all", header...); answer.StatusCode != 403 || session != "" {
			t.Errorf("from %s: %s", name, answer.Status)
		}
	}
	if answer, _ := signIn(t, server, "may-do-all", "Sec-Fetch-Site", "same-origin", "Origin", server.URL); answer.StatusCode != 303 {
		t.Errorf("from the page itself: %s", answer.Status)
	}
}

func TestBadCredentialsAreRefusedAtTheStart(t *testing.T) {
	for _, c := range []dashboard.Credential{
		{Name: "x", Role: dashboard.View, SHA256: "secret"},
		{Name: "x", Role: "root", SHA256: digest("x")},
		{Name: "", Role: dashboard.View, SHA256: digest("x")},
		{Name: "a|b", Role: dashboard.View, SHA256: digest("x")},
	} {
		_, err := dashboard.New(options(filled(t), func(o *dashboard.Options) { o.Credentials = []dashboard.Credential{c} }))
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestChangesReachWhoeverWatches(t *testing.T) {
	store := filled(t)
	server := serve(t, store)
	answer, err := http.Get(server.URL + "/live")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s, %s", answer.Status, answer.Header.Get("Content-Type"))
	}
	events := make(chan string)
	go func() {
		defer close(events)
		for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				events <- data
			}
		}
	}()
	next := func() string {
		select {
		case e, ok := <-events:
			if !ok {
				t.Fatal("the stream has ended")
			}
			return e
		case <-time.After(20 * time.Second):
			t.Fatal("nothing came")
		}
		return ""
	}
	first := next()
	before, err := store.Sum(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(first, strconv.FormatInt(before.Admitted, 10)) {
		t.Errorf("the first event is %s, the history holds %d", first, before.Admitted)
	}
	record := usage.Record{Key: usage.Key{Token: parse(t, "newcomer"), Minute: now.Unix() / 60}, Totals: usage.Totals{Admitted: 5, Last: now.Unix()}}
	if err := store.Ingest(context.Background(), usage.Batch{Records: []usage.Record{record}}); err != nil {
		t.Fatal(err)
	}
	if e := next(); !strings.Contains(e, strconv.FormatInt(before.Admitted+5, 10)) {
		t.Errorf("after 5 more units: %s", e)
	}
}
