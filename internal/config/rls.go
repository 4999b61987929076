package config

import (
	"strings"
	"time"
)

// RLS configures the enforcer's gateway for Envoy's rate limit service.
type RLS struct {
	// ConfigDir is a directory of envoyproxy/ratelimit's YAML files, reloaded when
	// it changes. Empty, the default, turns the gateway off.
	ConfigDir string `yaml:"config_dir"`
	// Listen is the gRPC address, or unix:/path. Default 127.0.0.1:8081.
	Listen string    `yaml:"listen"`
	TLS    ServerTLS `yaml:"tls"`
	// MergeDomains lets several files add to one domain. Default false.
	MergeDomains bool `yaml:"merge_domains"`
	// ShadowMode lets every call pass and counts what would have been refused. Default false.
	ShadowMode bool `yaml:"shadow_mode"`
	// QuotaMode treats every rule as if it had quota_mode. Default false.
	QuotaMode bool `yaml:"quota_mode"`
	// ResponseHeaders has gateways add the three headers below. Default false.
	ResponseHeaders bool   `yaml:"response_headers"`
	LimitHeader     string `yaml:"limit_header"`     // default RateLimit-Limit
	RemainingHeader string `yaml:"remaining_header"` // default RateLimit-Remaining
	ResetHeader     string `yaml:"reset_header"`     // default RateLimit-Reset
	// DynamicMetadata returns what was asked, and the metadata of the rules that
	// let it pass. Default false.
	DynamicMetadata bool `yaml:"dynamic_metadata"`
	// NearLimitRatio is the used share of a limit from which hits are counted as
	// near it. Default 0.8.
	NearLimitRatio float64 `yaml:"near_limit_ratio"`
	// MaxConnectionAge is how old a connection becomes, give or take a tenth, so
	// that gateways spread over new enforcers. Default 24h.
	MaxConnectionAge time.Duration `yaml:"max_connection_age"`
	// MaxConnectionAgeGrace is how long calls under way are waited for then. Default 1h.
	MaxConnectionAgeGrace time.Duration `yaml:"max_connection_age_grace"`
}

// ServerTLS says how a server identifies itself, and whom it lets in. Without
// CertFile it speaks plain text.
type ServerTLS struct {
	CertFile     string `yaml:"cert_file"`      // PEM; read again when it changes
	KeyFile      string `yaml:"key_file"`       // PEM
	ClientCAFile string `yaml:"client_ca_file"` // PEM; clients must show a certificate signed by these
	ClientName   string `yaml:"client_name"`    // DNS name or URI that it must bear
}

func defaultRLS() RLS {
	return RLS{
		Listen:      "127.0.0.1:8081",
		LimitHeader: "RateLimit-Limit", RemainingHeader: "RateLimit-Remaining", ResetHeader: "RateLimit-Reset",
		NearLimitRatio:   0.8,
		MaxConnectionAge: 24 * time.Hour, MaxConnectionAgeGrace: time.Hour,
	}
}

func (r *RLS) validate(wrong report) {
	if path, isUnix := strings.CutPrefix(r.Listen, "unix:"); !isUnix {
		address(wrong, "rls.listen", r.Listen)
	} else if path == "" {
		wrong("rls.listen", "%q names no socket; write unix:/path", r.Listen)
	}
	r.TLS.validate("rls.tls", wrong)
	if r.NearLimitRatio <= 0 || r.NearLimitRatio > 1 {
		wrong("rls.near_limit_ratio", "%v is not above 0 and at most 1", r.NearLimitRatio)
	}
	between(wrong, "rls.max_connection_age", r.MaxConnectionAge, time.Second, 10*365*24*time.Hour)
	between(wrong, "rls.max_connection_age_grace", r.MaxConnectionAgeGrace, time.Second, 10*365*24*time.Hour)
}

func (t *ServerTLS) validate(key string, wrong report) {
	switch {
	case (t.CertFile == "") != (t.KeyFile == ""):
		wrong(key, "cert_file and key_file go together; set both or neither")
	case t.CertFile == "" && t.ClientCAFile != "":
		wrong(key+".client_ca_file", "needs cert_file and key_file: without TLS no client can be known")
	case t.ClientCAFile == "" && t.ClientName != "":
		wrong(key+".client_name", "needs client_ca_file, which vouches for the name")
	}
}
