package enforcer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/quota"
)

// ErrUnknownPolicy is wrapped by Find with the policies that there are.
var ErrUnknownPolicy = errors.New("unknown policy")

// Policies are all policies in the form in which requests are decided: for each
// policy and resource the limits that apply, computed once and shared by all
// requests. They never change; a new configuration is a new Policies.
type Policies struct {
	byDefault string
	byName    map[string]*policy
}

type policy struct {
	byResource map[string]*Rule // those that a limit names
	rest       *Rule            // all others
}

// Rule is a policy as it applies to one resource. It is shared: read only.
type Rule struct {
	Policy  string
	Limits  []quota.Limit
	Blocked bool
	// announced is the value of the RateLimit-Policy header; "" without limits.
	announced string
}

// Compile returns the policies of a validated configuration.
func Compile(c *config.Config) *Policies {
	p := &Policies{byDefault: c.DefaultPolicy, byName: make(map[string]*policy, len(c.Policies))}
	for name, configured := range c.Policies {
		limits := make([]quota.Limit, len(configured.Limits))
		compiled := &policy{byResource: map[string]*Rule{}}
		for i, l := range configured.Limits {
			limits[i] = l.Compile()
			for _, resource := range limits[i].Resources {
				compiled.byResource[resource] = nil
			}
		}
		rule := func(covered func(quota.Limit) bool) *Rule {
			r := &Rule{Policy: name, Blocked: configured.Blocked}
			for _, l := range limits {
				if len(l.Resources) == 0 || covered(l) {
					r.Limits = append(r.Limits, l)
				}
			}
			r.announced = announce(r.Limits)
			return r
		}
		for resource := range compiled.byResource {
			compiled.byResource[resource] = rule(func(l quota.Limit) bool { return slices.Contains(l.Resources, resource) })
		}
		compiled.rest = rule(func(quota.Limit) bool { return false })
		p.byName[name] = compiled
	}
	return p
}

// Find returns what a policy, "" being the default one, says about a canonical
// resource. The error wraps ErrUnknownPolicy.
func (p *Policies) Find(name, resource string) (*Rule, error) {
	if name == "" {
		name = p.byDefault
	}
	found, ok := p.byName[name]
	if !ok {
		return nil, fmt.Errorf("%w: there is no %.64q; the policies are: %s", ErrUnknownPolicy, name, strings.Join(slices.Sorted(maps.Keys(p.byName)), ", "))
	}
	if rule, ok := found.byResource[resource]; ok {
		return rule, nil
	}
	return found.rest, nil
}

// announce returns the value of RateLimit-Policy: "minute";q=60;w=60, "day";q=1000;w=86400.
func announce(limits []quota.Limit) string {
	if len(limits) == 0 {
		return ""
	}
	list := make(httpsfv.List, len(limits))
	for i, l := range limits {
		item := httpsfv.NewItem(l.Name)
		item.Params.Add("q", l.Quota)
		item.Params.Add("w", seconds(l.Window))
		list[i] = item
	}
	value, err := httpsfv.Marshal(list)
	if err != nil {
		panic("enforcer: " + err.Error()) // names and numbers are validated
	}
	return value
}

// seconds rounds up: whoever comes back after so many seconds is not too early.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}
