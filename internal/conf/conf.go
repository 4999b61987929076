// Package conf keeps what administrators set for a token: its policy, its status,
// quotas of its own, its owner and labels.
//
//	conf      the settings of one token; a token without any has the zero Conf
//	change    what one administrator sets at once, and why
//	event     the record of a change, stored together with it, in one step
//
// A worked example: token T has policy free; Kim assigns pro and a quota of 500 to
// its limit minute, because of ticket 17.
//
//	conf:{api:T}     policy pro, quota:minute 500, version 2
//	events:{api:T}   policy.assigned {"policy":"free"} → {"policy":"pro"} by kim: ticket 17
//	                 limit.overridden …
//	channel api:conf T: enforcers forget what they know of T
package conf

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// ErrConflict is returned when others keep changing the same token.
var ErrConflict = errors.New("the token's settings are being changed by others at the same time")

// Conf is what is set for one token. It is shared: read only.
type Conf struct {
	Policy  string           // "" is not assigned: the request or the default chooses
	Blocked bool             // refuse everything
	Owner   string           // whom the token belongs to
	Labels  []string         // words or key=value, sorted
	Quotas  map[string]int64 // units by the name of a limit, in place of the policy's
}

// IsZero reports whether nothing is set.
func (c *Conf) IsZero() bool {
	return c.Policy == "" && !c.Blocked && c.Owner == "" && len(c.Labels) == 0 && len(c.Quotas) == 0
}

// Change is what one administrator does to one token. A nil field stays as it is.
type Change struct {
	Actor  string // the name of the credential
	Reason string
	At     int64 // unix ms

	Policy  *string // "" takes the assignment back
	Blocked *bool
	Owner   *string
	Labels  *[]string
	Quotas  map[string]int64 // 0 takes the token's own quota back
}

// Store keeps the settings of all tokens. It is safe for concurrent use.
type Store interface {
	// Get returns the settings of each token, the zero Conf where nothing is set.
	Get(ctx context.Context, ids []token.ID) ([]Conf, error)
	// Apply makes a change together with its events, all or nothing, and returns
	// the settings after it. A change that changes nothing makes no event.
	Apply(ctx context.Context, id token.ID, change Change) (Conf, error)
	// Watch calls changed for each token whose settings changed, wherever that was
	// done, and lost whenever it may have missed some; at first, too. It returns
	// when ctx ends.
	Watch(ctx context.Context, changed func(token.ID), lost func())
}

// apply returns c after change and the events that tell of it.
func (c Conf) apply(id token.ID, change Change) (Conf, []usage.Event) {
	after := c
	after.Quotas = maps.Clone(c.Quotas)
	var events []usage.Event
	tell := func(kind string, before, after map[string]any) {
		events = append(events, usage.Event{
			ID: rand.Text(), Token: id, At: change.At, Kind: kind, Actor: change.Actor, Reason: change.Reason,
			Before: object(before), After: object(after),
		})
	}
	if p := change.Policy; p != nil && *p != c.Policy {
		after.Policy = *p
		tell("policy.assigned", map[string]any{"policy": c.Policy}, map[string]any{"policy": *p})
	}
	if b := change.Blocked; b != nil && *b != c.Blocked {
		after.Blocked = *b
		kind := "token.unblocked"
		if *b {
			kind = "token.blocked"
		}
		tell(kind, map[string]any{"status": status(c.Blocked)}, map[string]any{"status": status(*b)})
	}
	if o := change.Owner; o != nil && *o != c.Owner {
		after.Owner = *o
		tell("owner.set", map[string]any{"owner": c.Owner}, map[string]any{"owner": *o})
	}
	if change.Labels != nil {
		labels := slices.Compact(slices.Sorted(slices.Values(*change.Labels)))
		if !slices.Equal(labels, c.Labels) {
			after.Labels = labels
			tell("labels.set", map[string]any{"labels": orEmpty(c.Labels)}, map[string]any{"labels": orEmpty(labels)})
		}
	}
	for _, limit := range slices.Sorted(maps.Keys(change.Quotas)) {
		quota := change.Quotas[limit]
		if quota == c.Quotas[limit] {
			continue
		}
		if quota == 0 {
			delete(after.Quotas, limit)
		} else {
			if after.Quotas == nil {
				after.Quotas = map[string]int64{}
			}
			after.Quotas[limit] = quota
		}
		tell("limit.overridden", quotaState(limit, c.Quotas[limit]), quotaState(limit, quota))
	}
	return after, events
}

func quotaState(limit string, quota int64) map[string]any {
	state := map[string]any{"limit": limit, "quota": nil}
	if quota > 0 {
		state["quota"] = quota
	}
	return state
}

func orEmpty(labels []string) []string { return append([]string{}, labels...) }

func object(members map[string]any) json.RawMessage {
	content, err := json.Marshal(members)
	if err != nil {
		panic("conf: " + err.Error()) // strings and numbers
	}
	return content
}

func status(blocked bool) string {
	if blocked {
		return "blocked"
	}
	return "active"
}

// The fields of conf:{api:T}. Labels are joined by newlines; quotas have one field
// for each limit.
const (
	fieldPolicy  = "policy"
	fieldStatus  = "status"
	fieldOwner   = "owner"
	fieldLabels  = "labels"
	fieldVersion = "version"
	prefixQuota  = "quota:"
)

// fields returns what c is as a hash; what is not set is absent.
func (c *Conf) fields() map[string]string {
	fields := map[string]string{}
	set := func(name, value string) {
		if value != "" {
			fields[name] = value
		}
	}
	set(fieldPolicy, c.Policy)
	set(fieldOwner, c.Owner)
	set(fieldLabels, strings.Join(c.Labels, "\n"))
	if c.Blocked {
		fields[fieldStatus] = "blocked"
	}
	for limit, quota := range c.Quotas {
		fields[prefixQuota+limit] = strconv.FormatInt(quota, 10)
	}
	return fields
}

// parse is the inverse of fields. What it does not know it leaves alone: a newer
// version may have written it.
func parse(fields map[string]string) Conf {
	c := Conf{Policy: fields[fieldPolicy], Owner: fields[fieldOwner], Blocked: fields[fieldStatus] == "blocked"}
	if labels := fields[fieldLabels]; labels != "" {
		c.Labels = strings.Split(labels, "\n")
	}
	for name, value := range fields {
		limit, ok := strings.CutPrefix(name, prefixQuota)
		if !ok {
			continue
		}
		if quota, err := strconv.ParseInt(value, 10, 64); err == nil && quota > 0 {
			if c.Quotas == nil {
				c.Quotas = map[string]int64{}
			}
			c.Quotas[limit] = quota
		}
	}
	return c
}
