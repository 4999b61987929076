package dashboard

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"
	_ "time/tzdata" // zones by name, also on a machine that has none

	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/query"
	"github.com/tallygate/tallygate/internal/token"
)

//go:embed templates/*.html
var templateFiles embed.FS

// request is one visit to a page.
type request struct {
	*http.Request
	Who      visitor
	Now      time.Time
	Zone     *time.Location
	ZoneName string // as in the URL, "" for UTC
	Theme    string
}

// zones are those that a page proposes; every other name is accepted too.
var zones = []string{
	"UTC", "America/Chicago", "America/Los_Angeles", "America/New_York", "America/Sao_Paulo", "Asia/Kolkata",
	"Asia/Shanghai", "Asia/Singapore", "Asia/Tokyo", "Australia/Sydney", "Europe/Berlin", "Europe/London", "Europe/Paris",
}

// view is what a page shows.
type view struct {
	Title    string
	Template string // the file in templates/ without .html
	Live     bool   // the page shows something else after each change
	Status   int    // of the answer; 200 when 0
	Data     any
}

var errNoPage = errors.New("no such page")

func (d *Dashboard) newRequest(r *http.Request) *request {
	q := &request{Request: r, Who: d.auth.who(r), Now: d.Now(), Zone: time.UTC}
	if c, err := r.Cookie(themeCookie); err == nil {
		q.Theme = theme(c.Value)
	}
	return q
}

// setZone reads the page's time zone from the URL.
func (r *request) setZone() error {
	name := r.URL.Query().Get("tz")
	if name == "" || name == "UTC" {
		return nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		return badInput("tz must be the name of a time zone, such as UTC or Europe/Berlin.")
	}
	r.Zone, r.ZoneName = zone, name
	return nil
}

// With returns the URL of this page with some parameters changed: name, value,
// name, value …; an empty value removes one. Where a page of a list begins is
// forgotten, unless it is what changes.
func (r *request) With(pairs ...string) string {
	return r.to(r.URL.Path, pairs...)
}

// Without returns the URL of this page without a parameter.
func (r *request) Without(name string) string { return r.With(name, "") }

// Base is the request itself, for the views that make URLs.
func (r *request) Base() *request { return r }

// ResourceURL returns the URL of this page with the usage of one resource only.
func (r *request) ResourceURL(canonical string) string {
	q := r.URL.Query()
	q.Set("resource", token.ResourceText(canonical)) // the default one is there and empty
	return r.URL.Path + "?" + q.Encode()
}

// TokenAudit returns the URL of a token's audit.
func (r *request) TokenAudit(id token.ID) string {
	q := url.Values{"t": {id.Text()}}
	if r.ZoneName != "" {
		q.Set("tz", r.ZoneName)
	}
	return "/audit?" + q.Encode()
}

// CSV returns the URL of this page's figures as CSV.
func (r *request) CSV() string {
	path := r.URL.Path
	if path == "/" {
		path = "/overview"
	}
	return r.to(path + ".csv")
}

func (r *request) to(path string, pairs ...string) string {
	q := r.URL.Query()
	q.Del("after")
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			q.Del(pairs[i])
		} else {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	if len(q) == 0 {
		return path
	}
	return path + "?" + q.Encode()
}

// TokenURL returns the URL of a token's page, with the span and zone of this one.
func (r *request) TokenURL(id token.ID) string {
	q := url.Values{"t": {id.Text()}}
	for _, keep := range []string{"span", "from", "to", "tz"} {
		if v := r.URL.Query().Get(keep); v != "" {
			q.Set(keep, v)
		}
	}
	return "/token?" + q.Encode()
}

// Page returns the URL of another page in this one's zone.
func (r *request) Page(path string) string {
	if r.ZoneName == "" {
		return path
	}
	return path + "?" + url.Values{"tz": {r.ZoneName}}.Encode()
}

// At writes unix seconds as a point in time, Ago as a distance from now.
func (r *request) At(unix int64) template.HTML  { return timeTag(r, unix, false) }
func (r *request) Ago(unix int64) template.HTML { return timeTag(r, unix, true) }

// AtMs is At for unix milliseconds.
func (r *request) AtMs(unixMs int64) template.HTML { return r.At(unixMs / 1000) }

// Clock writes a time for a table or a tooltip.
func (r *request) Clock(t time.Time) string { return t.In(r.Zone).Format("2 Jan 15:04") }

// Hour writes the end of a step whose begin Clock has written.
func (r *request) Hour(t time.Time) string { return t.In(r.Zone).Format("15:04") }

// Field writes a time as <input type="datetime-local"> takes it.
func (r *request) Field(t time.Time) string { return t.In(r.Zone).Format(inputLayout) }

// ISO writes a time for machines.
func (r *request) ISO(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Abbreviation is the zone as clocks write it.
func (r *request) Abbreviation() string { return r.Now.In(r.Zone).Format("MST") }

// Param returns a parameter of the URL.
func (r *request) Param(name string) string { return r.URL.Query().Get(name) }

// Self returns this page's own URL.
func (r *request) Self() string { return r.URL.RequestURI() }

// On reports whether a link of the navigation leads to the section that is shown.
func (r *request) On(path string) bool {
	if path == "/" {
		return r.URL.Path == "/"
	}
	return strings.HasPrefix(r.URL.Path, strings.TrimSuffix(path, "s"))
}

var pages = func() map[string]*template.Template {
	funcs := template.FuncMap{
		"units": units, "share": share, "percentOf": percentOf, "length": length, "plural": plural,
		"resource": resourceName, "asset": assetURL,
		"text":    func(id token.ID) string { return id.Text() },
		"add":     func(a, b int) int { return a + b },
		"sum2":    func(a, b int64) int64 { return a + b },
		"capital": func(s string) string { return strings.ToUpper(s[:1]) + s[1:] },
		"words":   func(s string) string { return strings.ReplaceAll(s, "_", " ") },
		"spans":   func() any { return spans },
		"zones":   func() []string { return zones },
	}
	base := template.Must(template.New("").Funcs(funcs).ParseFS(templateFiles, "templates/layout.html", "templates/parts.html"))
	entries, err := templateFiles.ReadDir("templates")
	if err != nil {
		panic(err) // they are part of the binary
	}
	all := map[string]*template.Template{}
	for _, e := range entries {
		name, _ := strings.CutSuffix(e.Name(), ".html")
		if name == "layout" || name == "parts" {
			continue
		}
		page := template.Must(template.Must(base.Clone()).ParseFS(templateFiles, "templates/"+e.Name()))
		all[name] = page
	}
	return all
}()

// frame is what the layout is given.
type frame struct {
	*request
	*view
	Version string
	SignIn  bool // there is a way to sign in
}

func (d *Dashboard) render(w http.ResponseWriter, r *request, status int, v *view) {
	var page bytes.Buffer // so that a failure gives no half page
	f := frame{r, v, d.Version, d.auth.signInNeeded()}
	if err := pages[v.Template].ExecuteTemplate(&page, "layout", f); err != nil {
		d.Log.ErrorContext(r.Context(), "page not rendered", "page", v.Template, "error", err)
		http.Error(w, "This page could not be made; the log says why.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = page.WriteTo(w) // the client has gone if this fails
}

// page returns a handler for a page that asks level of who looks at it.
func (d *Dashboard) page(show func(*request) (*view, error), need level) http.HandlerFunc {
	return func(w http.ResponseWriter, hr *http.Request) {
		r := d.newRequest(hr)
		if d.refuse(w, r, need) {
			return
		}
		err := r.setZone()
		var v *view
		if err == nil {
			v, err = show(r)
		}
		if err != nil {
			d.fail(w, r, err)
			return
		}
		d.render(w, r, cmp.Or(v.Status, http.StatusOK), v)
	}
}

// refuse answers a visitor who may not see a page, and reports whether it did.
func (d *Dashboard) refuse(w http.ResponseWriter, r *request, need level) bool {
	switch {
	case r.Who.may(need):
		return false
	case r.Who.Refused != "":
		d.render(w, r, http.StatusForbidden, failure("Only from this machine", r.Who.Refused,
			"To look from elsewhere, configure credentials (indexer.dashboard.credentials)."))
	default:
		http.Redirect(w, r.Request, "/sign-in?"+url.Values{"next": {r.Self()}}.Encode(), http.StatusSeeOther)
	}
	return true
}

type failureView struct{ What, Remedy string }

func failure(title, what, remedy string) *view {
	return &view{Title: title, Template: "failure", Data: failureView{what, remedy}}
}

// fail answers with a page that says what went wrong and what to do.
func (d *Dashboard) fail(w http.ResponseWriter, r *request, err error) {
	status, v := http.StatusServiceUnavailable,
		failure("The history does not answer", "The page needs figures that could not be read just now.",
			"Try again in a moment. If it lasts, the indexer's log says why.")
	var bad badInput
	switch {
	case errors.As(err, &bad):
		status, v = http.StatusBadRequest, failure("That address asks for something that is not there", bad.Error(), "Mend the address, or begin at the overview.")
	case errors.Is(err, query.ErrSort), errors.Is(err, query.ErrCursor), errors.Is(err, history.ErrCursor), errors.Is(err, history.ErrSpan),
		errors.Is(err, token.ErrToken), errors.Is(err, token.ErrResource):
		status, v = http.StatusBadRequest, failure("That address asks for something that is not there", err.Error()+".", "Mend the address, or begin at the overview.")
	case errors.Is(err, history.ErrUnknownToken):
		status, v = http.StatusNotFound, failure("Unknown token", "The history holds no usage of this token.",
			"A token appears here within seconds of its first use. Its name must match exactly.")
	case errors.Is(err, errNoPage):
		status, v = http.StatusNotFound, failure("No such page", "There is nothing at this address.", "Begin at the overview.")
	default:
		d.Log.ErrorContext(r.Context(), "page not shown", "path", r.URL.Path, "error", err)
	}
	d.render(w, r, status, v)
}
