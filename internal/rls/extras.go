package rls

import (
	"strconv"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// HeaderNames are the names of the headers that tell about the limit that is
// closest to be exceeded. An empty one is left out.
type HeaderNames struct{ Limit, Remaining, Reset string }

func (n *HeaderNames) values(st *pb.RateLimitResponse_DescriptorStatus) []*core.HeaderValue {
	headers := make([]*core.HeaderValue, 0, 3)
	add := func(name string, value int64) {
		if name != "" {
			headers = append(headers, &core.HeaderValue{Key: name, Value: strconv.FormatInt(value, 10)})
		}
	}
	add(n.Limit, int64(st.GetCurrentLimit().GetRequestsPerUnit()))
	add(n.Remaining, int64(st.GetLimitRemaining()))
	add(n.Reset, st.GetDurationUntilReset().GetSeconds())
	return headers
}

// dynamicMetadata tells a gateway what it asked, and the metadata of the rules
// whose descriptors may pass; of two values of one name the first stays, mappings
// are merged.
func dynamicMetadata(request *pb.RateLimitRequest, asked []asked, statuses []*pb.RateLimitResponse_DescriptorStatus) *structpb.Struct {
	descriptors := make([]*structpb.Value, 0, len(request.GetDescriptors()))
	for _, d := range request.GetDescriptors() {
		descriptors = append(descriptors, structpb.NewStructValue(describe(d)))
	}
	fields := map[string]*structpb.Value{
		"domain":      structpb.NewStringValue(request.GetDomain()),
		"descriptors": structpb.NewListValue(&structpb.ListValue{Values: descriptors}),
	}
	if hits := request.GetHitsAddend(); hits != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(hits))
	}
	passed := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i, a := range asked {
		if a.rule != nil && !a.rule.unlimited && statuses[i].GetCode() == pb.RateLimitResponse_OK {
			merge(passed, a.rule.metadata)
		}
	}
	if len(passed.GetFields()) > 0 {
		fields["metadata"] = structpb.NewStructValue(passed)
	}
	return &structpb.Struct{Fields: fields}
}

func describe(d *common.RateLimitDescriptor) *structpb.Struct {
	entries := make([]*structpb.Value, 0, len(d.GetEntries()))
	for _, e := range d.GetEntries() {
		entries = append(entries, structpb.NewStringValue(e.GetKey()+"="+e.GetValue()))
	}
	fields := map[string]*structpb.Value{"entries": structpb.NewListValue(&structpb.ListValue{Values: entries})}
	if l := d.GetLimit(); l != nil {
		fields["limit"] = structpb.NewStringValue("requests_per_unit:" + strconv.FormatUint(uint64(l.GetRequestsPerUnit()), 10) + " unit:" + l.GetUnit().String())
	}
	if hits := d.GetHitsAddend(); hits != nil {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(hits.GetValue()))
	}
	return &structpb.Struct{Fields: fields}
}

func merge(into, from *structpb.Struct) {
	for name, value := range from.GetFields() {
		known, ok := into.GetFields()[name]
		switch {
		case !ok && value.GetStructValue() != nil: // a copy: merging further must not change the rule's own
			fresh := &structpb.Struct{Fields: map[string]*structpb.Value{}}
			merge(fresh, value.GetStructValue())
			into.Fields[name] = structpb.NewStructValue(fresh)
		case !ok:
			into.Fields[name] = value
		case known.GetStructValue() != nil && value.GetStructValue() != nil:
			merge(known.GetStructValue(), value.GetStructValue())
		}
	}
}
