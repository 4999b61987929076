package tracker_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// value returns a counter or gauge of the tracker.
func value(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "tallygate_tracker_"+name {
			m := family.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
