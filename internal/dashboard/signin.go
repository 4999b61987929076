package dashboard

import (
	"net/http"
	"strings"
	"time"
)

type signInView struct {
	Next   string
	Failed bool
}

func (d *Dashboard) signInPage(r *request) (*view, error) {
	return &view{Title: "Sign in", Template: "sign-in", Data: signInView{Next: nextPath(r.URL.Query().Get("next"))}}, nil
}

func (d *Dashboard) signIn(w http.ResponseWriter, r *http.Request) {
	next := nextPath(r.PostFormValue("next"))
	who, ok := d.auth.check(strings.TrimSpace(r.PostFormValue("token")))
	if !ok {
		d.Log.WarnContext(r.Context(), "sign-in refused", "from", r.RemoteAddr)
		d.render(w, d.newRequest(r), http.StatusForbidden,
			&view{Title: "Sign in", Template: "sign-in", Data: signInView{Next: next, Failed: true}})
		return
	}
	http.SetCookie(w, d.auth.cookie(r, d.auth.newSession(who), sessionLife))
	http.Redirect(w, r, next, http.StatusSeeOther)
}

func (d *Dashboard) signOut(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, d.auth.cookie(r, "", -time.Second))
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

const themeCookie = "tallygate_theme"

// setTheme keeps the choice of light, dark or whatever the system says.
func (d *Dashboard) setTheme(w http.ResponseWriter, r *http.Request) {
	c := &http.Cookie{Name: themeCookie, Value: r.PostFormValue("theme"), Path: "/", MaxAge: 365 * 24 * 3600, SameSite: http.SameSiteLaxMode}
	if theme(c.Value) == "" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
	http.Redirect(w, r, nextPath(r.PostFormValue("next")), http.StatusSeeOther)
}

// theme returns a chosen theme, "" for the system's.
func theme(s string) string {
	if s == "light" || s == "dark" {
		return s
	}
	return ""
}

// nextPath returns where to go next, which is a page of this dashboard.
func nextPath(s string) string {
	if !strings.HasPrefix(s, "/") || strings.HasPrefix(s, "//") || strings.HasPrefix(s, `/\`) || strings.ContainsAny(s, "\r\n\t") {
		return "/"
	}
	return s
}
