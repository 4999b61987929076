package tracker_test

import (
	"io"
	"strings"
)

func expectMetric(name, help, value string) io.Reader {
	return exposition(name, help, "counter", value)
}

func expectGauge(name, help, value string) io.Reader { return exposition(name, help, "gauge", value) }

func exposition(name, help, kind, value string) io.Reader {
	name = "tallygate_tracker_" + name
	return strings.NewReader("# HELP " + name + " " + help + "\n# TYPE " + name + " " + kind + "\n" + name + " " + value + "\n")
}
