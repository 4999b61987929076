package rls

import (
	"regexp"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/goccy/go-yaml/ast"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tallygate/tallygate/internal/quota"
)

// parseDomain reads one file, a domain and its descriptors, into a set of domains.
func (r *reader) parseDomain(src []byte, into map[string]*domain, merge bool) {
	body := r.document(src)
	if body == nil {
		return
	}
	d := &domain{file: r.file, root: node{children: map[string]*node{}}}
	var descriptors ast.Node
	var setsAccounting ast.Node
	accounting := func(read func(ast.Node)) func(ast.Node) {
		return func(v ast.Node) { setsAccounting = v; read(v) }
	}
	r.fields(body, "the file", map[string]func(ast.Node){
		"domain":      func(v ast.Node) { d.name = r.text(v, "domain") },
		"descriptors": func(v ast.Node) { descriptors = v },
		"atomic":      accounting(func(v ast.Node) { d.atomic = r.boolean(v, "atomic") }),
		"resource":    accounting(func(v ast.Node) { d.resourceKey = r.text(v, "resource") }),
		"token":       accounting(func(v ast.Node) { d.tokenKeys = r.texts(v, "token") }),
	})
	if d.name == "" {
		r.problem(body, "the domain is empty; gateways name the domain that they ask about")
		return
	}
	d.resource = resourceOf(d.name)
	if known := into[d.name]; known != nil {
		switch {
		case !merge:
			r.problem(body, "domain %q stands in %s too; put both into one file, or set rls.merge_domains", d.name, known.file)
			return
		case setsAccounting != nil:
			r.problem(setsAccounting, "atomic, token and resource of domain %q belong into %s, where it first stands", d.name, known.file)
		}
		d = known
	}
	into[d.name] = d
	if descriptors != nil {
		r.descriptors(descriptors, d, &d.root, d.name, false, 1)
	}
}

// texts reads a single value or a list of them.
func (r *reader) texts(node ast.Node, what string) []string {
	if _, ok := node.(ast.ScalarNode); ok {
		return []string{r.text(node, what)}
	}
	var texts []string
	r.list(node, what, func(v ast.Node) { texts = append(texts, r.text(v, what)) })
	return texts
}

// descriptors reads a list of descriptors below parent, whose path is given.
// values says that a metric of theirs shows values of requests.
func (r *reader) descriptors(list ast.Node, d *domain, parent *node, path string, values bool, depth int) {
	if depth > maxDepth {
		r.problem(list, "descriptors are nested more than %d deep", maxDepth)
		return
	}
	r.list(list, "descriptors", func(v ast.Node) { r.descriptor(v, d, parent, path, values, depth) })
}

// descriptor reads one descriptor and those below it.
func (r *reader) descriptor(at ast.Node, d *domain, parent *node, path string, values bool, depth int) {
	n := &node{line: lineOf(at)}
	var limit, below ast.Node
	rl := &rule{}
	var metadata map[string]any
	r.fields(at, "a descriptor", map[string]func(ast.Node){
		"key":             func(v ast.Node) { n.key = r.text(v, "key") },
		"value":           func(v ast.Node) { n.value = r.text(v, "value") },
		"rate_limit":      func(v ast.Node) { limit = v },
		"descriptors":     func(v ast.Node) { below = v },
		"shadow_mode":     func(v ast.Node) { rl.shadow = r.boolean(v, "shadow_mode") },
		"quota_mode":      func(v ast.Node) { rl.quotaMode = r.boolean(v, "quota_mode") },
		"detailed_metric": func(v ast.Node) { rl.detailed = r.boolean(v, "detailed_metric") },
		"value_to_metric": func(v ast.Node) { n.valueToMetric = r.boolean(v, "value_to_metric") },
		"share_threshold": func(v ast.Node) { n.shared = r.boolean(v, "share_threshold") },
		"metadata": func(v ast.Node) {
			metadata, _ = r.value(v, 0).(map[string]any)
			if metadata == nil {
				r.problem(v, "metadata must be a mapping (key: value)")
			}
		},
	})
	if n.key == "" {
		r.problem(at, "a descriptor has no key; name the entry that it matches")
		return
	}
	n.name = n.key
	if n.value != "" {
		n.name += "_" + n.value
	}
	path += "." + n.name
	if first := parent.children[n.name]; first != nil {
		r.problem(at, "descriptor %s stands twice, first on line %d", path, first.line)
		return
	}
	if strings.Contains(n.name, "*") {
		n.parts = strings.Split(n.name, "*")
		parent.patterns = append(parent.patterns, n)
	} else if n.shared {
		r.problem(at, "descriptor %s: share_threshold needs a * in the value, whose matches share the limit", path)
	}
	if parent.children == nil {
		parent.children = map[string]*node{}
	}
	parent.children[n.name] = n
	if limit != nil {
		rl.domain, rl.path = d.name, path
		r.rateLimit(limit, rl, d)
		rl.valuesInMetric = values || n.valueToMetric
		n.rule = rl
	}
	if metadata != nil {
		var err error
		if rl.metadata, err = structpb.NewStruct(metadata); err != nil {
			r.problem(at, "descriptor %s: metadata: %v", path, err)
		}
	}
	if below != nil {
		r.descriptors(below, d, n, path, values || n.valueToMetric, depth+1)
	}
}

// rateLimit reads the limit of a descriptor into rl.
func (r *reader) rateLimit(at ast.Node, rl *rule, d *domain) {
	var unit string
	var zone *time.Location
	var unitAt ast.Node
	var requests uint64
	multiplier := uint64(1)
	r.fields(at, "rate_limit", map[string]func(ast.Node){
		"unit":              func(v ast.Node) { unit, unitAt = strings.ToLower(r.text(v, "unit")), v },
		"requests_per_unit": func(v ast.Node) { requests = r.number(v, "requests_per_unit", 0, 1<<32-1) },
		"unlimited":         func(v ast.Node) { rl.unlimited = r.boolean(v, "unlimited") },
		"name":              func(v ast.Node) { rl.name = r.text(v, "name") },
		"unit_multiplier":   func(v ast.Node) { multiplier = r.number(v, "unit_multiplier", 1, maxMultiplier) },
		"time_zone": func(v ast.Node) {
			var err error
			if zone, err = time.LoadLocation(r.text(v, "time_zone")); err != nil {
				r.problem(v, "time_zone: %v; name one such as UTC or Europe/Vienna", err)
			}
		},
		"replaces": func(v ast.Node) {
			r.list(v, "replaces", func(v ast.Node) {
				name := ""
				r.fields(v, "replaces", map[string]func(ast.Node){"name": func(v ast.Node) { name = r.text(v, "name") }})
				if name == "" {
					r.problem(v, "replaces: an entry has no name; give the name of the limit that is replaced")
				}
				rl.replaces = append(rl.replaces, name)
			})
		},
	})
	for _, name := range rl.replaces {
		if name != "" && name == rl.name {
			r.problem(at, "replaces: %q is the limit's own name", name)
		}
	}
	w, known := windows[unit]
	switch {
	case rl.unlimited && known:
		r.problem(unitAt, "an unlimited limit has no unit; remove one of them")
	case rl.unlimited:
	case !known:
		if unitAt == nil {
			unitAt = at
		}
		r.problem(unitAt, "unit %q is not one of: second, minute, hour, day, week, month, year", unit)
	case multiplier > uint64(maxWindow/w.length):
		r.problem(at, "unit_multiplier: %d of a %s is more than ten years", multiplier, unit)
	default:
		l := newLimit(unit, int64(multiplier), uint32(requests), d.resource)
		if zone != nil {
			r.calendar(at, &l, unit, multiplier, zone)
		}
		rl.limits = []quota.Limit{l}
		rl.blocked = requests == 0
		rl.answer = &pb.RateLimitResponse_RateLimit{RequestsPerUnit: uint32(requests), Unit: unitOf(&l), Name: rl.name}
	}
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// calendar turns a limit into one of the calendar of a time zone.
func (r *reader) calendar(at ast.Node, l *quota.Limit, unit string, multiplier uint64, zone *time.Location) {
	c, err := quota.NewCalendar(quota.CalendarOptions{Unit: unit, Zone: zone})
	switch {
	case err != nil:
		r.problem(at, "time_zone: %v", err)
	case multiplier > 1:
		r.problem(at, "time_zone and unit_multiplier exclude each other; remove one")
	default:
		l.Algorithm, l.Calendar = quota.CalendarWindow, c
		l.Name += "-" + strings.Trim(notInName.ReplaceAllString(strings.ToLower(zone.String()), "-"), "-")
	}
}
