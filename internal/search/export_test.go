package search

// Narrow makes x look for narrow windows, so that a few tokens are enough to need one.
func Narrow(x *Index) { x.least, x.slack = 0, 2 }

// Version is the version of the schema.
const Version = version

// Schema is what stands after FT.CREATE name.
var Schema = schema
