package service

import "runtime/debug"

// version is stamped by the linker: -ldflags "-X …/internal/service.version=v1.2.3".
var version string

// Version returns the stamped version, or the revision that was built.
func Version() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" && len(setting.Value) >= 12 {
			return "dev-" + setting.Value[:12]
		}
	}
	return "dev"
}
