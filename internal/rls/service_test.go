package rls

import (
	"context"
	"errors"
	"math"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tallygate/tallygate/internal/memory"
	"github.com/tallygate/tallygate/internal/quota"
)

// at is 10.25 s before the end of a minute and of an hour.
const at = 1_767_225_600_000 - 10_250

func store() *memory.Store { return memory.New(memory.Options{Now: func() int64 { return at }}) }

// serviceOf answers by rules written in YAML.
func serviceOf(t testing.TB, store Store, o Options, yaml string) *Service {
	rules := load(t, "rules.yaml", yaml)
	return New(func() *Rules { return rules }, store, o)
}

func descriptor(pairs ...string) *common.RateLimitDescriptor {
	return &common.RateLimitDescriptor{Entries: entries(pairs...)}
}

func withHits(d *common.RateLimitDescriptor, hits uint64) *common.RateLimitDescriptor {
	d.HitsAddend = wrapperspb.UInt64(hits)
	return d
}

func call(t testing.TB, s *Service, r *pb.RateLimitRequest) *pb.RateLimitResponse {
	t.Helper()
	response, err := s.ShouldRateLimit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if len(response.Statuses) != len(r.Descriptors) {
		t.Fatalf("%d statuses for %d descriptors", len(response.Statuses), len(r.Descriptors))
	}
	return response
}

// codesOf returns the overall code and those of the descriptors: o for OK, X for over.
func codesOf(r *pb.RateLimitResponse) string {
	word := func(c pb.RateLimitResponse_Code) string {
		return map[pb.RateLimitResponse_Code]string{pb.RateLimitResponse_OK: "o", pb.RateLimitResponse_OVER_LIMIT: "X"}[c]
	}
	out := word(r.OverallCode) + ":"
	for _, st := range r.Statuses {
		out += word(st.Code)
	}
	return out
}

func expect(t testing.TB, s *Service, want string, r *pb.RateLimitRequest) *pb.RateLimitResponse {
	t.Helper()
	response := call(t, s, r)
	if got := codesOf(response); got != want {
		t.Errorf("got %s, want %s: %v", got, want, response)
	}
	return response
}

func ask(descriptors ...*common.RateLimitDescriptor) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: "d", Descriptors: descriptors}
}

const three = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: minute, requests_per_unit: 3, name: general}}\n"

func TestAStatusTellsTheLimitWhatRemainsAndWhenItResets(t *testing.T) {
	s := serviceOf(t, store(), Options{}, three)
	for remaining := 2; remaining >= 0; remaining-- {
		st := expect(t, s, "o:o", ask(descriptor("k", "v"))).Statuses[0]
		if l := st.CurrentLimit; st.LimitRemaining != uint32(remaining) || l.RequestsPerUnit != 3 || l.Unit != pb.RateLimitResponse_RateLimit_MINUTE || l.Name != "general" {
			t.Errorf("got %v", st)
		}
		if d := st.DurationUntilReset; d.Seconds != 11 || d.Nanos != 0 { // 10.25 s, rounded up
			t.Errorf("reset in %v", d)
		}
	}
	st := expect(t, s, "X:X", ask(descriptor("k", "v"))).Statuses[0]
	if st.LimitRemaining != 0 || st.DurationUntilReset.Seconds != 11 {
		t.Errorf("got %v", st)
	}
	expect(t, s, "o:o", ask(descriptor("k", "other")))
}

func TestHitsAreTheDescriptorsOwnOrTheRequestsAndAtLeastOne(t *testing.T) {
	s := serviceOf(t, store(), Options{}, three)
	remaining := func(want uint32, r *pb.RateLimitRequest) {
		t.Helper()
		if got := call(t, s, r).Statuses[0].LimitRemaining; got != want {
			t.Errorf("%d remain, want %d", got, want)
		}
	}
	remaining(2, ask(descriptor("k", "a")))
	both := ask(withHits(descriptor("k", "a"), 2))
	both.HitsAddend = 1
	remaining(0, both)
	all := ask(descriptor("k", "b"))
	all.HitsAddend = 3
	remaining(0, all)
	peek := ask(withHits(descriptor("k", "c"), 0))
	peek.HitsAddend = 3
	remaining(3, peek)
	remaining(3, peek)
	expect(t, s, "X:X", ask(withHits(descriptor("k", "d"), math.MaxUint64)))
}

func TestWhatNoRuleMatchesIsOKWithoutALimit(t *testing.T) {
	s := serviceOf(t, store(), Options{}, three)
	for _, r := range []*pb.RateLimitRequest{
		ask(descriptor("other", "v")),
		ask(descriptor("k", "v", "deeper", "v")),
		ask(descriptor()),
		{Domain: "unknown", Descriptors: []*common.RateLimitDescriptor{descriptor("k", "v")}},
	} {
		if st := expect(t, s, "o:o", r).Statuses[0]; st.CurrentLimit != nil || st.LimitRemaining != 0 || st.DurationUntilReset != nil {
			t.Errorf("%v: %v", r, st)
		}
	}
}

func TestStatusesStandInTheOrderOfTheDescriptorsAndOneOverIsOver(t *testing.T) {
	s := serviceOf(t, store(), Options{}, three+"- {key: one, rate_limit: {unit: hour, requests_per_unit: 1}}\n")
	r := ask(descriptor("nothing", "x"), descriptor("one", "x"), descriptor("k", "x"))
	expect(t, s, "o:ooo", r)
	response := expect(t, s, "X:oXo", r)
	if got := response.Statuses[2].LimitRemaining; got != 1 {
		t.Errorf("each descriptor is decided by itself: %d remain, want 1", got)
	}
}

func TestALimitOfNothingRefusesEverythingButALook(t *testing.T) {
	s := serviceOf(t, store(), Options{}, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 0}}]")
	st := expect(t, s, "X:X", ask(descriptor("k", "v"))).Statuses[0]
	if st.CurrentLimit == nil || st.LimitRemaining != 0 || st.DurationUntilReset.GetSeconds() != 11 {
		t.Errorf("got %v", st)
	}
	expect(t, s, "o:o", ask(withHits(descriptor("k", "v"), 0)))
}

func TestAnUnlimitedRuleIsOKAndKnownByItsRemainder(t *testing.T) {
	s := serviceOf(t, broken{}, Options{}, "domain: d\ndescriptors: [{key: k, rate_limit: {unlimited: true}}]")
	if st := expect(t, s, "o:o", ask(descriptor("k", "v"))).Statuses[0]; st.LimitRemaining != math.MaxUint32 || st.CurrentLimit != nil {
		t.Errorf("got %v", st)
	}
}

func TestARequestMayBringItsOwnLimit(t *testing.T) {
	s := serviceOf(t, store(), Options{}, "domain: d\ndescriptors: [{key: k, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}]")
	own := descriptor("k", "v")
	own.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: typev3.RateLimitUnit_HOUR}
	if st := expect(t, s, "o:o", ask(own)).Statuses[0]; st.CurrentLimit.RequestsPerUnit != 1 || st.CurrentLimit.Unit != pb.RateLimitResponse_RateLimit_HOUR {
		t.Errorf("got %v", st)
	}
	expect(t, s, "X:X", ask(own)) // the rule's shadow_mode does not hold for it
	own.Limit.Unit = typev3.RateLimitUnit_UNKNOWN
	if _, err := s.ShouldRateLimit(t.Context(), ask(own)); status.Code(err) != codes.InvalidArgument {
		t.Errorf("without a unit: %v", err)
	}
	if r, err := s.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "unknown", Descriptors: ask(own).Descriptors}); err != nil || r.Statuses[0].CurrentLimit != nil {
		t.Errorf("in an unknown domain: %v, %v", r, err)
	}
}

func TestShadowModeCountsAndNeverRefuses(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := serviceOf(t, store(), Options{Metrics: registry}, "domain: d\ndescriptors: [{key: k, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}]")
	expect(t, s, "o:o", ask(descriptor("k", "v")))
	if st := expect(t, s, "o:o", ask(descriptor("k", "v"))).Statuses[0]; st.LimitRemaining != 0 || st.CurrentLimit == nil {
		t.Errorf("got %v", st)
	}
	if got := testutil.ToFloat64(s.metrics.hits.WithLabelValues("d.k", shadowed)); got != 1 {
		t.Errorf("%v shadowed", got)
	}
	global := serviceOf(t, store(), Options{ShadowMode: true}, three)
	expect(t, global, "o:o", ask(withHits(descriptor("k", "v"), 3)))
	expect(t, global, "o:X", ask(descriptor("k", "v"))) // the statuses tell
}

func TestQuotaModeRefusesOnlyTogether(t *testing.T) {
	s := serviceOf(t, store(), Options{}, `
domain: d
descriptors:
  - {key: a, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: b, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: c, rate_limit: {unit: minute, requests_per_unit: 3}}
`)
	r := ask(descriptor("a", ""), descriptor("b", ""), descriptor("c", ""))
	expect(t, s, "o:ooo", r)
	expect(t, s, "o:Xoo", r)
	expect(t, s, "X:XXo", r)
	expect(t, s, "X:X", ask(descriptor("a", "")))
	expect(t, s, "X:XoX", ask(descriptor("a", ""), descriptor("none", ""), descriptor("c", "")))

	global := serviceOf(t, store(), Options{QuotaMode: true}, three)
	expect(t, global, "o:o", ask(withHits(descriptor("k", "v"), 3)))
	expect(t, global, "X:X", ask(descriptor("k", "v")))
	expect(t, global, "o:Xo", ask(descriptor("k", "v"), descriptor("k", "w")))
}

func TestAReplacedLimitIsNotAskedAndKeepsItsCount(t *testing.T) {
	s := serviceOf(t, store(), Options{}, three+"- {key: special, rate_limit: {unit: minute, requests_per_unit: 9, replaces: [{name: general}]}}\n")
	response := expect(t, s, "o:oo", ask(descriptor("k", "v"), descriptor("special", "v")))
	if response.Statuses[0].CurrentLimit != nil || response.Statuses[1].LimitRemaining != 8 {
		t.Errorf("got %v", response)
	}
	if got := call(t, s, ask(descriptor("k", "v"))).Statuses[0].LimitRemaining; got != 2 {
		t.Errorf("%d remain, want 2", got)
	}
}

func TestValuesOfOnePatternShareItsLimitOnRequest(t *testing.T) {
	s := serviceOf(t, store(), Options{}, `
domain: d
descriptors:
  - {key: file, value: a*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: file, value: b*, rate_limit: {unit: hour, requests_per_unit: 1}}
`)
	expect(t, s, "o:o", ask(descriptor("file", "a1")))
	expect(t, s, "X:X", ask(descriptor("file", "a2")))
	expect(t, s, "o:o", ask(descriptor("file", "b1")))
	expect(t, s, "o:o", ask(descriptor("file", "b2")))
}

func TestAnAtomicDomainTakesAllOrNothingOfAToken(t *testing.T) {
	const rules = `
token: user
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 5}
    descriptors:
      - {key: path, rate_limit: {unit: hour, requests_per_unit: 1}}
      - {key: path, value: /shut, rate_limit: {unit: hour, requests_per_unit: 0}}
      - {key: path, value: /shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
`
	both := func(path string) *pb.RateLimitRequest {
		return ask(descriptor("user", "u"), descriptor("user", "u", "path", path))
	}
	remaining := func(s *Service) uint32 {
		return call(t, s, ask(withHits(descriptor("user", "u"), 0))).Statuses[0].LimitRemaining
	}
	memory := store()
	s := serviceOf(t, memory, Options{}, "domain: d\natomic: true"+rules)
	expect(t, s, "o:oo", both("/a"))
	if st := expect(t, s, "X:oX", both("/a")).Statuses[0]; st.LimitRemaining != 4 {
		t.Errorf("the other limit says %v", st)
	}
	if got := remaining(s); got != 4 {
		t.Errorf("a refused call took from the other limit: %d remain, want 4", got)
	}
	if st := expect(t, s, "X:oX", both("/shut")).Statuses[0]; st.LimitRemaining != 4 {
		t.Errorf("beside a limit of nothing the other one says %v", st)
	}
	if got := remaining(s); got != 4 {
		t.Errorf("a call refused by a limit of nothing took from the other: %d remain, want 4", got)
	}
	expect(t, s, "o:oo", both("/shadow"))
	expect(t, s, "o:oo", both("/shadow"))
	if got := remaining(s); got != 2 {
		t.Errorf("a shadowed limit refused something: %d remain, want 2", got)
	}

	s = serviceOf(t, store(), Options{}, "domain: d"+rules)
	expect(t, s, "o:oo", both("/a"))
	expect(t, s, "X:oX", both("/a"))
	if got := remaining(s); got != 3 {
		t.Errorf("by default each descriptor is decided by itself: %d remain, want 3", got)
	}
}

func TestHeadersTellOfTheLimitThatIsClosest(t *testing.T) {
	s := serviceOf(t, store(), Options{Headers: &HeaderNames{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"}}, three+
		"- {key: one, rate_limit: {unit: hour, requests_per_unit: 1}}\n- {key: soft, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}\n")
	headers := func(r *pb.RateLimitResponse) (all []string) {
		for _, h := range r.ResponseHeadersToAdd {
			all = append(all, h.Key+"="+h.Value)
		}
		return all
	}
	equal := func(got []string, want ...string) {
		t.Helper()
		for i := range want {
			if len(got) != len(want) || got[i] != want[i] {
				t.Fatalf("got %v, want %v", got, want)
			}
		}
	}
	equal(headers(call(t, s, ask(descriptor("none", "")))))
	equal(headers(call(t, s, ask(descriptor("none", ""), descriptor("k", "x")))), "RateLimit-Limit=3", "RateLimit-Remaining=2", "RateLimit-Reset=11")
	equal(headers(call(t, s, ask(descriptor("k", "x"), descriptor("one", "x")))), "RateLimit-Limit=1", "RateLimit-Remaining=0", "RateLimit-Reset=11")
	call(t, s, ask(descriptor("soft", "")))
	equal(headers(expect(t, s, "X:XX", ask(descriptor("soft", ""), descriptor("one", "x")))), "RateLimit-Limit=1", "RateLimit-Remaining=0", "RateLimit-Reset=11")
}

func TestDynamicMetadataTellsWhatWasAskedAndWhatThePassedRulesSay(t *testing.T) {
	s := serviceOf(t, store(), Options{DynamicMetadata: true}, `
domain: d
descriptors:
  - {key: a, metadata: {tier: gold, more: {x: 1}}, rate_limit: {unit: minute, requests_per_unit: 9}}
  - {key: b, metadata: {tier: tin, more: {x: 2, y: 3}}, rate_limit: {unit: minute, requests_per_unit: 9}}
  - {key: c, metadata: {never: seen}, rate_limit: {unit: minute, requests_per_unit: 0}}
`)
	r := ask(descriptor("a", "1"), withHits(descriptor("b", ""), 2), descriptor("c", ""))
	r.HitsAddend = 4
	for range 2 { // the rules' own metadata stays as it is
		m := call(t, s, r).DynamicMetadata.AsMap()
		got := m["metadata"].(map[string]any)
		more := got["more"].(map[string]any)
		if m["domain"] != "d" || m["hitsAddend"] != 4.0 || got["tier"] != "gold" || more["x"] != 1.0 || more["y"] != 3.0 || got["never"] != nil {
			t.Errorf("got %v", m)
		}
		first := m["descriptors"].([]any)[1].(map[string]any)
		if first["hitsAddend"] != 2.0 || first["entries"].([]any)[0] != "b=" {
			t.Errorf("descriptor %v", first)
		}
	}
}

func TestARequestThatAsksNothingIsRefused(t *testing.T) {
	s := serviceOf(t, store(), Options{}, three)
	for _, r := range []*pb.RateLimitRequest{{}, {Domain: "d"}, {Descriptors: ask(descriptor("k", "v")).Descriptors}} {
		if _, err := s.ShouldRateLimit(t.Context(), r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", r, err)
		}
	}
}

// broken is a store that cannot be asked.
type broken struct{}

func (broken) Decide(context.Context, quota.Request) quota.Result {
	return quota.Result{Err: errors.New("away")}
}

func (b broken) DecideAll(ctx context.Context, requests []quota.Request) []quota.Result {
	results := make([]quota.Result, len(requests))
	for i := range results {
		results[i] = b.Decide(ctx, requests[i])
	}
	return results
}

func (broken) Adjust(context.Context, quota.Adjustment) error { return errors.New("away") }

func TestSeveralHitsCountEvenWhereTheyDoNotFit(t *testing.T) {
	s := serviceOf(t, store(), Options{}, three)
	peek := func() *pb.RateLimitRequest { return ask(withHits(descriptor("k", "v"), 0)) }
	expect(t, s, "o:o", peek())
	expect(t, s, "o:o", ask(withHits(descriptor("k", "v"), 2)))
	if got := expect(t, s, "o:o", peek()).Statuses[0].LimitRemaining; got != 1 {
		t.Errorf("%d remain, want 1", got)
	}
	expect(t, s, "X:X", ask(withHits(descriptor("k", "v"), 2))) // what has been used, reported late
	expect(t, s, "X:X", peek())
}

func TestNegativeHitsGiveBackWhatWasTaken(t *testing.T) {
	s := serviceOf(t, store(), Options{}, three)
	expect(t, s, "o:o", ask(withHits(descriptor("k", "v"), 3)))
	expect(t, s, "X:X", ask(descriptor("k", "v")))
	back := withHits(descriptor("k", "v"), 2)
	back.IsNegativeHits = true
	if got := expect(t, s, "o:o", ask(back)).Statuses[0].LimitRemaining; got != 2 {
		t.Errorf("%d remain, want 2", got)
	}
	never := withHits(descriptor("k", "unused"), 2)
	never.IsNegativeHits = true
	if got := expect(t, s, "o:o", ask(never)).Statuses[0].LimitRemaining; got != 3 {
		t.Errorf("%d remain, want 3: what was never taken cannot be given back", got)
	}
}

func TestWithoutItsStoreACallIsUnavailableNeverOK(t *testing.T) {
	s := serviceOf(t, broken{}, Options{}, three)
	for _, r := range []*pb.RateLimitRequest{ask(descriptor("k", "v")), ask(descriptor("k", "v"), descriptor("k", "w"))} {
		if _, err := s.ShouldRateLimit(t.Context(), r); status.Code(err) != codes.Unavailable {
			t.Errorf("%v: %v", r, err)
		}
	}
	expect(t, s, "o:o", ask(descriptor("none", "")))
}

func TestMetricsAreLabelledByRuleUnlessTheRuleAsksForValues(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := serviceOf(t, store(), Options{Metrics: registry}, `
domain: d
descriptors:
  - {key: plain, `+limitOf+`}
  - {key: detailed, detailed_metric: true, `+limitOf+`}
  - key: route
    value_to_metric: true
    descriptors:
      - {key: user, `+limitOf+`}
  - {key: file, value: a*, share_threshold: true, detailed_metric: true, `+limitOf+`}
  - {key: verb, value: get*, value_to_metric: true, `+limitOf+`}
`)
	for range 2 {
		call(t, s, ask(descriptor("plain", "1"), descriptor("detailed", "1"), descriptor("route", "r", "user", "u"), descriptor("file", "abc"), descriptor("verb", "getx")))
	}
	for _, path := range []string{"d.plain", "d.detailed_1", "d.route_r.user", "d.file_a*", "d.verb_getx"} {
		if a, r := testutil.ToFloat64(s.metrics.hits.WithLabelValues(path, admitted)), testutil.ToFloat64(s.metrics.hits.WithLabelValues(path, rejected)); a != 1 || r != 1 {
			t.Errorf("%s: %v admitted, %v rejected, want 1 and 1", path, a, r)
		}
	}
	for i := range maxDetailed + 100 {
		call(t, s, ask(descriptor("detailed", string(rune('A'+i)))))
	}
	if n, err := testutil.GatherAndCount(registry, "tallygate_rls_hits_total"); err != nil || n > 3*(maxDetailed+10) {
		t.Errorf("%d series, %v", n, err)
	}
	if got := testutil.ToFloat64(s.metrics.hits.WithLabelValues("d.detailed", admitted)); got < 100 {
		t.Errorf("%v counted under the rule itself", got)
	}
}
