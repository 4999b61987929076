package dashboard

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Role is what somebody may do.
type Role string

// The roles. Who is an admin may do all that a viewer may.
const (
	View  Role = "view"
	Admin Role = "admin"
)

// Credential is a bearer token that lets somebody in.
type Credential struct {
	Name   string // who it is, as it stands in the audit
	Role   Role
	SHA256 string // of the bearer token, in hex: the token itself is kept nowhere
}

// level is how much a page asks of who looks at it.
type level int

const (
	everybody level = iota
	viewers
	admins
)

// visitor is who asks.
type visitor struct {
	Name  string // "" when nobody signed in
	level level
	// Refused says why a visitor who needs no credential may not look.
	Refused string
}

func (v visitor) may(l level) bool { return v.level >= l }

// Admin reports whether the visitor may change things.
func (v visitor) Admin() bool { return v.may(admins) }

// auth knows who may look. It is safe for concurrent use.
type auth struct {
	credentials []credential
	open        bool
	key         []byte // signs sessions
	now         func() time.Time
}

type credential struct {
	name   string
	level  level
	digest [sha256.Size]byte
}

const (
	sessionCookie = "tallygate_session"
	sessionLife   = 12 * time.Hour
)

func newAuth(list []Credential, open bool, now func() time.Time) (*auth, error) {
	a := &auth{open: open, now: now}
	key := sha256.New()
	for i, c := range list {
		digest, err := hex.DecodeString(c.SHA256)
		if err != nil || len(digest) != sha256.Size {
			return nil, fmt.Errorf("dashboard: credential %d (%s): the SHA-256 of the token must be 64 hex digits; print it with  printf %%s TOKEN | sha256sum", i, c.Name)
		}
		known := credential{name: c.Name, digest: [sha256.Size]byte(digest)}
		switch c.Role {
		case View:
			known.level = viewers
		case Admin:
			known.level = admins
		default:
			return nil, fmt.Errorf("dashboard: credential %d (%s): the role is %q, but must be view or admin", i, c.Name, c.Role)
		}
		if c.Name == "" || strings.ContainsAny(c.Name, "|\r\n") {
			return nil, fmt.Errorf("dashboard: credential %d: the name %q must not be empty nor contain a bar or a line break", i, c.Name)
		}
		a.credentials = append(a.credentials, known)
		fmt.Fprintf(key, "%q %q %x\n", c.Name, c.Role, digest)
	}
	// The key follows from the credentials: every indexer accepts the sessions of
	// the others, and a changed credential ends all sessions.
	mac := hmac.New(sha256.New, key.Sum(nil))
	mac.Write([]byte("tallygate dashboard session"))
	a.key = mac.Sum(nil)
	return a, nil
}

// signInNeeded reports whether there is a way to sign in.
func (a *auth) signInNeeded() bool { return len(a.credentials) > 0 }

// check returns whose bearer token it is.
func (a *auth) check(token string) (visitor, bool) {
	digest := sha256.Sum256([]byte(token))
	var found visitor
	for _, c := range a.credentials { // all of them, so that time tells nothing
		if subtle.ConstantTimeCompare(digest[:], c.digest[:]) == 1 {
			found = visitor{Name: c.name, level: c.level}
		}
	}
	return found, found.Name != ""
}

// who returns who sent a request.
func (a *auth) who(r *http.Request) visitor {
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		if v, ok := a.check(token); ok {
			return v
		}
	}
	if c, err := r.Cookie(sessionCookie); err == nil {
		if v, ok := a.session(c.Value); ok {
			return v
		}
	}
	switch {
	case a.open:
		return visitor{level: viewers}
	case a.signInNeeded():
		return visitor{}
	case !local(r):
		return visitor{Refused: "Without credentials the dashboard answers only this machine itself, by the name localhost or 127.0.0.1."}
	}
	return visitor{level: viewers}
}

// local reports whether a request comes from this machine and was addressed to
// it. The address it was sent to matters: a page from elsewhere may give its own
// name this machine's address and then read what it answers.
func local(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !from.Addr().Unmap().IsLoopback() {
		return false
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	to, err := netip.ParseAddr(host)
	return err == nil && to.IsLoopback()
}

// A session is name|level|end|signature, in base64: nothing is kept on the server.
func (a *auth) newSession(v visitor) string {
	text := v.Name + "|" + strconv.Itoa(int(v.level)) + "|" + strconv.FormatInt(a.now().Add(sessionLife).Unix(), 10)
	return base64.RawURLEncoding.EncodeToString([]byte(text + "|" + a.sign(text)))
}

func (a *auth) sign(text string) string {
	mac := hmac.New(sha256.New, a.key)
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

func (a *auth) session(cookie string) (visitor, bool) {
	decoded, err := base64.RawURLEncoding.DecodeString(cookie)
	if err != nil || !a.signInNeeded() {
		return visitor{}, false
	}
	at := strings.LastIndexByte(string(decoded), '|')
	if at < 0 || !hmac.Equal([]byte(a.sign(string(decoded[:at]))), decoded[at+1:]) {
		return visitor{}, false
	}
	parts := strings.Split(string(decoded[:at]), "|")
	if len(parts) != 3 {
		return visitor{}, false
	}
	l, err1 := strconv.Atoi(parts[1])
	end, err2 := strconv.ParseInt(parts[2], 10, 64)
	if err1 != nil || err2 != nil || a.now().Unix() >= end {
		return visitor{}, false
	}
	return visitor{Name: parts[0], level: level(l)}, true
}

func (a *auth) cookie(r *http.Request, value string, life time.Duration) *http.Cookie {
	return &http.Cookie{
		Name: sessionCookie, Value: value, Path: "/", MaxAge: int(life.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteLaxMode,
		Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
	}
}
