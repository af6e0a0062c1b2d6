// Package schematest holds what kshare writes against the committed schemas, for
// tests. It is stricter than a schema is: a key that no schema has is a mistake of
// ours, while a reader takes it for one that was added since.
package schematest
