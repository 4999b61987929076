// Package admin is the API with which administrators steer tokens: what is set
// for a token, and how far each of its limits is.
//
//	GET   /v1/admin/tokens/{token}    settings and live limits    role read
//	PATCH /v1/admin/tokens/{token}    change settings             role write
//
// A change names what it changes, and why; null takes a setting back:
//
//	{"policy":"pro","quotas":{"minute":500},"reason":"ticket 17"}
//	{"status":"blocked","reason":"leaked key"}
//
// Every change is an audit event, stored in one step with the change.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tallygate/tallygate/internal/conf"
	"github.com/tallygate/tallygate/internal/credential"
	"github.com/tallygate/tallygate/internal/enforcer"
	"github.com/tallygate/tallygate/internal/problem"
	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// API answers administrators. It is safe for concurrent use.
type API struct {
	Credentials *credential.Set
	Settings    conf.Store
	Enforcer    *enforcer.Enforcer
	Log         *slog.Logger
	Now         func() time.Time
}

// Handler serves the API. It must not be on a public address.
func (a *API) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /v1/admin/tokens/{token}", a.allow(credential.Read, a.get))
	mux.Handle("PATCH /v1/admin/tokens/{token}", a.allow(credential.Write, a.patch))
	return mux
}

// handler answers a request about a token by a recognised administrator.
type handler func(w http.ResponseWriter, r *http.Request, who credential.Credential, id token.ID) error

// allow lets through whoever has the role.
func (a *API) allow(role credential.Role, next handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := a.Credentials.Check(credential.Bearer(r), a.Now())
		switch {
		case err != nil:
			a.Log.Warn("an administrator was not recognised", "error", err, "remote", r.RemoteAddr)
			w.Header().Set("WWW-Authenticate", `Bearer realm="tallygate"`)
			problem.Write(w, problem.New(http.StatusUnauthorized, "Authorization", "send a valid bearer token"))
			return
		case !who.Role.Allows(role):
			problem.Write(w, problem.New(http.StatusForbidden, "Authorization", fmt.Sprintf("credential %s has role %s; this needs %s", who.Name, who.Role, role)))
			return
		}
		id, err := token.Parse(r.PathValue("token"))
		if err != nil {
			problem.Write(w, problem.New(http.StatusBadRequest, "token", err.Error()))
			return
		}
		if err := next(w, r, who, id); err != nil {
			a.fail(w, r, err)
		}
	})
}

// wrong is an input that cannot be accepted.
type wrong struct{ field, detail string }

func (w *wrong) Error() string { return w.field + ": " + w.detail }

func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	var input *wrong
	switch {
	case errors.As(err, &input):
		problem.Write(w, problem.New(http.StatusBadRequest, input.field, input.detail))
	case errors.Is(err, conf.ErrConflict):
		problem.Write(w, problem.New(http.StatusConflict, "", err.Error()+"; try again"))
	default:
		a.Log.Error("an admin call failed", "method", r.Method, "error", err)
		problem.Write(w, problem.New(http.StatusServiceUnavailable, "", "the store cannot be reached; whether the change was made shows when it can"))
	}
}

// state is the body of an answer.
type state struct {
	Policy string           `json:"policy"` // assigned; "" when the request or the default chooses
	Status string           `json:"status"`
	Owner  string           `json:"owner"`
	Labels []string         `json:"labels"`
	Quotas map[string]int64 `json:"quotas"`
	Limits []limit          `json:"limits"`
}

// limit is one limit as it stands.
type limit struct {
	Name      string   `json:"name"`
	Resources []string `json:"resources,omitempty"`
	Algorithm string   `json:"algorithm"`
	Shadow    bool     `json:"shadow,omitempty"`
	Quota     int64    `json:"quota"`
	WindowMs  int64    `json:"window_ms"`
	Remaining int64    `json:"remaining"`
	ResetMs   int64    `json:"reset_ms"`
}

func (a *API) get(w http.ResponseWriter, r *http.Request, _ credential.Credential, id token.ID) error {
	confs, err := a.Settings.Get(r.Context(), []token.ID{id})
	if err != nil {
		return err
	}
	return a.answer(r.Context(), w, id, confs[0])
}

func (a *API) answer(ctx context.Context, w http.ResponseWriter, id token.ID, c conf.Conf) error {
	s := state{Policy: c.Policy, Status: "active", Owner: c.Owner, Labels: c.Labels, Quotas: c.Quotas, Limits: []limit{}}
	if c.Blocked {
		s.Status = "blocked"
	}
	if s.Labels == nil {
		s.Labels = []string{}
	}
	if s.Quotas == nil {
		s.Quotas = map[string]int64{}
	}
	live, err := a.Enforcer.Live(ctx, id, &c)
	if err != nil {
		return err
	}
	for _, l := range live {
		resources := make([]string, len(l.Resources))
		for i, resource := range l.Resources {
			resources[i] = token.ResourceText(resource)
		}
		s.Limits = append(s.Limits, limit{
			Name: l.Name, Resources: resources, Algorithm: l.Algorithm.String(), Shadow: l.Shadow,
			Quota: l.Limit.Quota, WindowMs: l.WindowMs,
			Remaining: l.Remaining, ResetMs: l.Reset.Milliseconds(),
		})
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(s) // the client has gone if this fails
	return nil
}

// patch is the body of a change. A nil member stays as it is; null takes back.
type patch struct {
	Policy *nullable[string]          `json:"policy"`
	Status *nullable[string]          `json:"status"`
	Owner  *nullable[string]          `json:"owner"`
	Labels *nullable[[]string]        `json:"labels"`
	Quotas map[string]nullable[int64] `json:"quotas"`
	Reason string                     `json:"reason"`
}

// nullable is a member that was sent; null is the zero value.
type nullable[T any] struct{ value T }

func (n *nullable[T]) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return nil
	}
	return json.Unmarshal(text, &n.value)
}

const maxBody = 64 << 10 // bytes

func (a *API) patch(w http.ResponseWriter, r *http.Request, who credential.Credential, id token.ID) error {
	change, err := a.decode(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return err
	}
	change.Actor, change.At = who.Name, a.Now().UnixMilli()
	after, err := a.Settings.Apply(r.Context(), id, change)
	if err != nil {
		return err
	}
	a.Log.Info("a token's settings were changed", "actor", who.Name, "reason", change.Reason)
	return a.answer(r.Context(), w, id, after)
}

func (a *API) decode(body io.Reader) (conf.Change, error) {
	var members map[string]json.RawMessage
	content, err := io.ReadAll(body)
	if err == nil {
		err = json.Unmarshal(content, &members)
	}
	if err != nil {
		return conf.Change{}, &wrong{"body", fmt.Sprintf("is not a JSON object of at most %d bytes: %v", maxBody, err)}
	}
	var p patch
	for name, value := range members {
		var target any
		switch name {
		case "policy":
			p.Policy = new(nullable[string])
			target = p.Policy
		case "status":
			p.Status = new(nullable[string])
			target = p.Status
		case "owner":
			p.Owner = new(nullable[string])
			target = p.Owner
		case "labels":
			p.Labels = new(nullable[[]string])
			target = p.Labels
		case "quotas":
			target = &p.Quotas
		case "reason":
			target = &p.Reason
		default:
			return conf.Change{}, &wrong{fmt.Sprintf("%.64s", name), "is not known here; the members are: policy, status, owner, labels, quotas, reason"}
		}
		if err := json.Unmarshal(value, target); err != nil {
			return conf.Change{}, &wrong{name, fmt.Sprintf("has the wrong type: %v", err)}
		}
	}
	return a.change(p)
}

// change checks a patch and returns it as a change.
func (a *API) change(p patch) (conf.Change, error) {
	change := conf.Change{Reason: p.Reason}
	if err := text("reason", p.Reason, 1, 1024); err != nil {
		return change, err
	}
	policies := a.Enforcer.Policies()
	if p.Policy != nil {
		if name := p.Policy.value; name != "" {
			if _, err := policies.Find(name, ""); err != nil {
				return change, &wrong{"policy", err.Error()}
			}
		}
		change.Policy = &p.Policy.value
	}
	if p.Status != nil {
		blocked := p.Status.value == "blocked"
		if !blocked && p.Status.value != "active" && p.Status.value != "" {
			return change, &wrong{"status", fmt.Sprintf("%q is neither active nor blocked", p.Status.value)}
		}
		change.Blocked = &blocked
	}
	if p.Owner != nil {
		if err := text("owner", p.Owner.value, 0, 256); err != nil {
			return change, err
		}
		change.Owner = &p.Owner.value
	}
	if p.Labels != nil {
		if len(p.Labels.value) > 64 {
			return change, &wrong{"labels", "are more than 64; use fewer"}
		}
		for _, label := range p.Labels.value {
			if err := text("labels", label, 1, 256); err != nil {
				return change, err
			}
		}
		change.Labels = &p.Labels.value
	}
	for name, units := range p.Quotas {
		if !slices.Contains(policies.LimitNames(), name) {
			return change, &wrong{"quotas", fmt.Sprintf("no policy has a limit %.64q; the limits are: %s", name, strings.Join(policies.LimitNames(), ", "))}
		}
		if units.value < 0 || units.value > quota.MaxCost {
			return change, &wrong{"quotas", fmt.Sprintf("%s is %d; send 1 to %d units, or null for the policy's own", name, units.value, int64(quota.MaxCost))}
		}
		if change.Quotas == nil {
			change.Quotas = map[string]int64{}
		}
		change.Quotas[name] = units.value
	}
	return change, nil
}

// text checks what people will read and search for.
func text(field, s string, least, most int) error {
	switch {
	case len(s) < least:
		return &wrong{field, "is missing or empty; say it in a few words"}
	case len(s) > most:
		return &wrong{field, fmt.Sprintf("has %d bytes, at most %d are allowed", len(s), most)}
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) || strings.TrimSpace(s) != s:
		return &wrong{field, "has control characters, blanks at an end, or is not valid UTF-8"}
	}
	return nil
}
