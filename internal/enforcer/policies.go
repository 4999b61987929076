package enforcer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
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

// policy finds the limits that cover a resource as a set of bits, one per limit,
// and makes each rule that such a set stands for once.
type policy struct {
	name    string
	blocked bool
	limits  []quota.Limit
	all     uint64            // limits without resources
	exact   map[string]uint64 // limits by a resource that they name
	globs   []glob
	rules   sync.Map // uint64 → *Rule; as many as there are sets that occur
}

// glob is a pattern of resources and the limits that name it.
type glob struct {
	pattern string
	limits  uint64
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
		p.byName[name] = compile(name, configured)
	}
	return p
}

func compile(name string, configured config.Policy) *policy {
	p := &policy{name: name, blocked: configured.Blocked, exact: map[string]uint64{}}
	globs := map[string]uint64{}
	for i, l := range configured.Limits {
		limit, err := l.Compile()
		if err != nil {
			panic("enforcer: " + err.Error()) // the configuration has been validated
		}
		bit := uint64(1) << i
		p.limits = append(p.limits, limit)
		if len(limit.Resources) == 0 {
			p.all |= bit
		}
		for _, resource := range limit.Resources {
			if config.IsGlob(resource) {
				globs[resource] |= bit
			} else {
				p.exact[resource] |= bit
			}
		}
	}
	for _, pattern := range slices.Sorted(maps.Keys(globs)) {
		p.globs = append(p.globs, glob{pattern, globs[pattern]})
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
	return found.rule(resource), nil
}

func (p *policy) rule(resource string) *Rule {
	covering := p.all | p.exact[resource]
	for _, g := range p.globs {
		if covering&g.limits != g.limits && config.MatchGlob(g.pattern, resource) {
			covering |= g.limits
		}
	}
	if known, ok := p.rules.Load(covering); ok {
		return known.(*Rule)
	}
	r := &Rule{Policy: p.name, Blocked: p.blocked}
	for i, l := range p.limits {
		if covering&(1<<i) != 0 {
			r.Limits = append(r.Limits, l)
		}
	}
	r.announced = announce(r.Limits)
	known, _ := p.rules.LoadOrStore(covering, r)
	return known.(*Rule)
}

// announce returns the value of RateLimit-Policy: "minute";q=60;w=60, "day";q=1000;w=86400.
func announce(limits []quota.Limit) string {
	var list httpsfv.List
	for _, l := range limits {
		if l.Shadow {
			continue // nobody needs to heed it
		}
		item := httpsfv.NewItem(l.Name)
		item.Params.Add("q", l.Quota)
		if l.Window > 0 { // windows of a calendar differ in length
			item.Params.Add("w", seconds(l.Window))
		}
		list = append(list, item)
	}
	if len(list) == 0 {
		return ""
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
